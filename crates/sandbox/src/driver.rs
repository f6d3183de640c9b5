//! The one task that owns a sandbox.
//!
//! It does what [`crate::lifecycle`] decides: makes the machine, greets the
//! guest, keeps the link alive, watches the machine, keeps the time limit, and
//! removes everything at the end. Whoever wants something sends a [`Command`];
//! whoever waits watches the state.
//!
//! What must hold: the ledger is written before anyone is told, and every wait
//! is bounded by [`Bounds`]. The task outlives the request that began it, so a
//! client that hangs up leaves nothing half-made.

mod machine;

use std::{sync::Arc, time::Duration};

use domain::{
    ending::{Cause, Ending},
    id::SandboxId,
    time::Timestamp,
};
use tokio::sync::{mpsc, watch};

use crate::{
    backend::Backend,
    host::{Ledger, Sources},
    lifecycle::{Action, Event, State, step},
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
            remove: Duration::from_secs(60),
        }
    }
}

/// How a driver begins.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Make the machine.
    Start(Box<SandboxSpec>, Personality),
    /// Take over a machine that runs.
    Adopt,
}

/// A wish of somebody else.
#[derive(Debug)]
pub(crate) enum Command {
    /// End it.
    Stop(Ending),
    /// Move the time limit.
    SetDeadline(Option<Timestamp>),
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
}

impl Driver {
    /// Drives the sandbox to its end, or until released.
    pub(crate) async fn run(mut self, origin: Origin) {
        let Some(ending) = self.live(origin).await else { return };
        self.link.send_replace(None);
        let begun = tokio::time::Instant::now();
        self.remove().await;
        let remove_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.record_end(&ending).await;
        let (state, _) = step(self.state.borrow().clone(), Event::Removed);
        let cause = ending.cause.as_str();
        tracing::info!(sandbox.id = %self.id, cause, remove_ms, "sandbox ended");
        self.state.send_replace(state);
    }

    /// Returns how it ends, or nothing when released.
    async fn live(&mut self, origin: Origin) -> Option<Ending> {
        let (events, mut happened) = mpsc::channel(8);
        let machine = machine::Machine {
            id: self.id.clone(),
            backend: self.backend.clone(),
            sources: self.sources,
            bounds: self.bounds,
            events,
            link: self.link.clone(),
        };
        let mut working = Box::pin(machine.run(origin));
        let mut finished = false;
        loop {
            let event = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Stop(ending)) => Event::Stop(ending),
                    Some(Command::SetDeadline(deadline)) => {
                        self.deadline = deadline;
                        continue;
                    }
                    Some(Command::Release) | None => return None,
                },
                Some(event) = happened.recv() => event,
                () = sleep_until(self.deadline, &self.sources) => {
                    Event::Stop(Ending::new(Cause::TimeLimit, "its time limit passed"))
                }
                () = &mut working, if !finished => {
                    finished = true;
                    continue;
                }
            };
            let (state, action) = step(self.state.borrow().clone(), event);
            match action {
                Action::Nothing => {}
                Action::AnnounceRunning => {
                    if let Err(error) = self.ledger.running(&self.id).await {
                        // Nobody may be told of a sandbox that is not on record.
                        tracing::error!(sandbox.id = %self.id, %error, "cannot record that a sandbox runs");
                        let ending =
                            Ending::new(Cause::StartFailed, "its start could not be recorded");
                        self.state.send_replace(State::Stopping(ending.clone()));
                        return Some(ending);
                    }
                    self.state.send_replace(state);
                }
                Action::Remove | Action::AnnounceEnded => {
                    let ending = match &state {
                        State::Stopping(ending) | State::Ended(ending) => ending.clone(),
                        State::Provisioning | State::Running => continue,
                    };
                    self.state.send_replace(state);
                    return Some(ending);
                }
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
