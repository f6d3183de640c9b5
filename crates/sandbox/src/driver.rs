//! The one task that owns a sandbox.
//!
//! It does what [`crate::lifecycle`] decides: makes the machine, greets the
//! guest, keeps the link alive, watches the machine, keeps the time limit, and
//! removes everything at the end. Whoever wants something sends a [`Command`];
//! whoever waits watches the state. Capturing the machine is in [`capture`].
//!
//! What must hold: the ledger is written before anyone is told, and every wait
//! is bounded by [`Bounds`]. The task outlives the request that began it, so a
//! client that hangs up leaves nothing half-made.

mod capture;
mod machine;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use domain::{
    ending::{Cause, Ending},
    id::SandboxId,
    time::Timestamp,
};
use tokio::sync::{mpsc, oneshot, watch};

use self::capture::{Asked, Capturing, captured};
use crate::{
    backend::{Backend, Captured, Sealed, Then},
    egress::Egress,
    host::{HostError, Sources},
    ledger::{Ledger, Recorded},
    lifecycle::{Action, Event, Fact, State, step},
    link::Link,
    spec::{Personality, SandboxSpec},
};

/// How long each step may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Making what all sandboxes of a spec share, such as a template.
    pub prepare: Duration,
    /// Making one machine.
    pub create: Duration,
    /// Giving the guest its identity.
    pub identify: Duration,
    /// Between two signs of life, and for the answer to one.
    pub heartbeat: Duration,
    /// Without a link before the guest counts as lost.
    pub reconnect: Duration,
    /// Writing a snapshot.
    pub capture: Duration,
    /// Letting a machine go on that stands still.
    pub proceed: Duration,
    /// Removing the machine before that is reported as a fault.
    pub remove: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            prepare: Duration::from_secs(600),
            create: Duration::from_secs(60),
            identify: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
            reconnect: Duration::from_secs(60),
            capture: Duration::from_secs(300),
            proceed: Duration::from_secs(15),
            remove: Duration::from_secs(60),
        }
    }
}

/// How a driver begins.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Make the machine.
    Start(Box<SandboxSpec>, Personality),
    /// Make the machine from the snapshot that its own pause left.
    Resume(Box<SandboxSpec>),
    /// Take over a machine that runs, or was left standing still.
    Adopt,
}

/// Where what came of a capture is told.
pub(crate) type Answer = oneshot::Sender<Result<Captured, HostError>>;

/// A wish of somebody else.
#[derive(Debug)]
pub(crate) enum Command {
    /// End it.
    Stop(Ending),
    /// Move the time limit.
    SetDeadline(Option<Timestamp>),
    /// Capture it; with [`Then::Hold`] that is a pause.
    Capture(Sealed, Then, Answer),
    /// Stop driving; the machine lives on for whoever comes next.
    Release,
}

/// Everything a driver works with.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) id: SandboxId,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) sources: Sources,
    pub(crate) bounds: Bounds,
    pub(crate) deadline: Option<Timestamp>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) state: watch::Sender<State>,
    pub(crate) link: watch::Sender<Option<Link>>,
    /// Whether it has, or had, volumes.
    pub(crate) volumes: Arc<AtomicBool>,
    pub(crate) egress: Arc<dyn Egress>,
    /// A wish to stop that came while something was being recorded.
    pub(crate) stop: Option<Ending>,
}

/// How a driver's work is over.
enum Over {
    /// Somebody else drives from here on.
    Released,
    /// The machine is to be removed. Whoever asked for a pause is told then.
    Remove(Option<Asked>),
}

impl Driver {
    /// Drives the sandbox to its end, or until released.
    pub(crate) async fn run(mut self, origin: Origin) {
        let Over::Remove(asked) = self.live(origin).await else { return };
        self.link.send_replace(None);
        let begun = tokio::time::Instant::now();
        self.remove().await;
        let remove_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (state, _) = step(self.state.borrow().clone(), Event::Removed);
        if let State::Ended(ending) = &state {
            self.record_end(ending).await;
            let cause = ending.cause.as_str();
            tracing::info!(sandbox.id = %self.id, cause, remove_ms, "sandbox ended");
        } else {
            tracing::info!(sandbox.id = %self.id, ?state, remove_ms, "sandbox is paused");
        }
        self.state.send_replace(state);
        if let Some(asked) = asked {
            asked.succeed();
        }
    }

    async fn live(&mut self, origin: Origin) -> Over {
        let (events, mut happened) = mpsc::channel(8);
        let (stillness, still) = watch::channel(0_u64);
        let machine = machine::Machine {
            id: self.id.clone(),
            backend: self.backend.clone(),
            sources: self.sources,
            bounds: self.bounds,
            events,
            link: self.link.clone(),
            egress: self.egress.clone(),
            still,
        };
        let mut working = Box::pin(machine.run(origin));
        let mut finished = false;
        let mut capture: Option<Capturing> = None;
        loop {
            let mut asked = None;
            let (deadline, sources) = (self.deadline, self.sources);
            let event = tokio::select! {
                biased;
                command = self.command() => match command {
                    Some(Command::Stop(ending)) => Event::Stop(ending),
                    Some(Command::SetDeadline(deadline)) => {
                        self.deadline = deadline;
                        continue;
                    }
                    Some(Command::Capture(to, then, answer)) => {
                        if let Some(begun) = self.begin_capture(to, then, answer) {
                            // Odd from here on: it stands still.
                            stillness.send_modify(|moves| *moves += 1);
                            capture = Some(begun);
                        }
                        continue;
                    }
                    Some(Command::Release) | None => {
                        if capture.take().is_some() {
                            self.proceed().await;
                        }
                        return Over::Released;
                    }
                },
                outcome = captured(&mut capture) => {
                    asked = self.end_capture(capture.take(), outcome);
                    if asked.is_some() { Event::Captured } else { Event::CaptureFailed }
                }
                Some(event) = happened.recv() => event,
                // While it is captured, its time stands still.
                () = sleep_until(deadline, &sources), if capture.is_none() => {
                    Event::Stop(Ending::new(Cause::TimeLimit, "its time limit passed"))
                }
                () = &mut working, if !finished => {
                    finished = true;
                    continue;
                }
            };
            match self.follow(event, &mut asked).await {
                Some(State::Running) if capture.is_none() => {
                    // Even from here on: it moves again.
                    stillness.send_modify(|moves| *moves += *moves % 2);
                }
                Some(State::Stopping(ending)) => {
                    let alive = capture.is_none() && !finished;
                    let calm = matches!(ending.cause, Cause::Requested | Cause::TimeLimit);
                    if alive && calm && self.volumes.load(Ordering::Relaxed) {
                        // The machine's side is what moves the link.
                        tokio::select! {
                            () = self.flush() => {}
                            () = &mut working => {}
                        }
                    }
                    return Over::Remove(asked);
                }
                Some(State::Shelving(_)) => return Over::Remove(asked),
                Some(_) => {}
                None => return Over::Released,
            }
            if let Some(asked) = asked {
                asked.succeed();
            }
        }
    }

    /// Takes steps from an event until there is nothing more to do now. Returns
    /// the state, or nothing when released meanwhile.
    async fn follow(&mut self, mut event: Event, asked: &mut Option<Asked>) -> Option<State> {
        loop {
            let (state, action) = step(self.state.borrow().clone(), event);
            if action == Action::Proceed {
                self.proceed().await;
            }
            self.state.send_if_modified(|now| {
                let modified = *now != state;
                now.clone_from(&state);
                modified
            });
            if let Action::Record(fact) = action {
                event = self.record(fact, asked.as_ref()).await?;
                if let Event::Refused(why) = &event
                    && let Some(asked) = asked.take()
                {
                    asked.refuse(why);
                }
                continue;
            }
            return Some(state);
        }
    }

    async fn flush(&self) {
        let link = self.link.borrow().clone();
        if let Some(link) = link {
            crate::volumes::flush_before_the_end(&link).await;
        }
    }

    /// The next wish. Safe to drop.
    async fn command(&mut self) -> Option<Command> {
        match self.stop.take() {
            Some(ending) => Some(Command::Stop(ending)),
            None => self.commands.recv().await,
        }
    }

    /// Records a fact and returns the event that this is, or nothing when
    /// released meanwhile.
    ///
    /// What came of a write that got no answer is unknown. So a pause and a
    /// resume wait for the store, however long it is away: the machine stays as
    /// it is and the next process can go by what is on record.
    async fn record(&mut self, fact: Fact, asked: Option<&Asked>) -> Option<Event> {
        let mut pause = Duration::from_millis(100);
        loop {
            let recorded = match (fact, asked) {
                (Fact::Running, _) => match self.ledger.running(&self.id).await {
                    Ok(()) => Ok(Recorded::Yes),
                    Err(error) => {
                        // Nobody may be told of a sandbox that is not on record.
                        tracing::error!(sandbox.id = %self.id, %error, "cannot record that a sandbox runs");
                        Ok(Recorded::No("its start could not be recorded".to_owned()))
                    }
                },
                (Fact::Resumed, _) => self.ledger.resumed(&self.id).await,
                (Fact::Paused, Some(asked)) => {
                    self.ledger.paused(&self.id, &asked.snapshot, asked.captured).await
                }
                (Fact::Paused, None) => Ok(Recorded::No("there is no snapshot".to_owned())),
            };
            match recorded {
                Ok(Recorded::Yes) => return Some(Event::Recorded),
                Ok(Recorded::No(why)) => return Some(Event::Refused(why)),
                Err(error) => {
                    tracing::error!(sandbox.id = %self.id, %error, ?fact, "cannot record what became of a sandbox");
                }
            }
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Release) | None => return None,
                    Some(Command::Stop(ending)) => self.stop = Some(ending),
                    Some(Command::SetDeadline(deadline)) => self.deadline = deadline,
                    Some(Command::Capture(_, _, answer)) => drop(answer.send(Err(HostError::Busy))),
                },
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            }
        }
    }

    /// Removes the machine, trying until the bound; then it is reported and the
    /// sandbox ends all the same, so that its place is free (K15).
    async fn remove(&self) {
        let removing = async {
            let mut pause = Duration::from_millis(100);
            while let Err(error) = self.backend.destroy(&self.id).await {
                tracing::warn!(sandbox.id = %self.id, error = &error as &dyn std::error::Error, "cannot remove a machine yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        };
        if tokio::time::timeout(self.bounds.remove, removing).await.is_err() {
            tracing::error!(sandbox.id = %self.id, "a machine could not be removed; it stays listed by the backend");
        }
    }

    /// Records the end, however long the store is away: an ending that nobody
    /// knows of would come back as a running sandbox.
    async fn record_end(&mut self, ending: &Ending) {
        let mut pause = Duration::from_millis(100);
        loop {
            match self.ledger.ended(&self.id, ending).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(sandbox.id = %self.id, %error, "cannot record the end of a sandbox");
                }
            }
            tokio::select! {
                command = self.commands.recv() => {
                    if matches!(command, Some(Command::Release) | None) {
                        return;
                    }
                }
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            }
        }
    }
}

/// Waits until the deadline by the wall clock, or for ever without one.
async fn sleep_until(deadline: Option<Timestamp>, sources: &Sources) {
    let Some(deadline) = deadline else { return std::future::pending().await };
    loop {
        let left = (sources.clock)().until(deadline);
        if left.is_zero() {
            return;
        }
        // In pieces, so that a clock that was set is noticed.
        tokio::time::sleep(left.min(Duration::from_secs(60))).await;
    }
}
