//! From nothing to a guest that answers, and keeping it so.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use domain::{id::SandboxId, mode::EgressMode};
use guest_protocol::control::{Identity, Newcomer, Request};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use crate::{
    backend::{Backend, BackendError},
    driver::{Bounds, Origin},
    egress::{self, Egress},
    host::Sources,
    lifecycle::Event,
    link::{self, Control, ControlError, Link},
    network::network,
    spec::{Personality, SandboxSpec, Source},
};

/// The machine's side of a driver. Reports what happens; decides nothing.
pub(super) struct Machine {
    pub(super) id: SandboxId,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) sources: Sources,
    pub(super) bounds: Bounds,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) link: watch::Sender<Option<Link>>,
    pub(super) egress: Arc<dyn Egress>,
    /// Odd while the machine stands still to be captured. A silent guest is not
    /// lost then, and hears afterwards what it missed.
    pub(super) still: watch::Receiver<u64>,
}

impl Machine {
    /// Reports until there is nothing more to report.
    pub(super) async fn run(self, origin: Origin) {
        let greeting = match self.begin(origin).await {
            Ok(greeting) => greeting,
            Err(why) => {
                self.report(Event::StartFailed(why)).await;
                return;
            }
        };
        let why = tokio::select! {
            why = self.backend.wait(&self.id) => Event::MachineExited(why),
            event = self.keep_link(greeting) => event,
        };
        // A machine that ended takes its link with it; say which came first.
        let why = match why {
            Event::GuestLost(_) => {
                let ended = timeout(Duration::from_millis(200), self.backend.wait(&self.id)).await;
                ended.map_or(why, Event::MachineExited)
            }
            other => other,
        };
        self.report(why).await;
    }

    async fn report(&self, event: Event) {
        // The driver is gone only when the sandbox is, or was released.
        drop(self.events.send(event).await);
    }

    /// Sees to it that there is a machine, and says how its guest is greeted.
    async fn begin(&self, origin: Origin) -> Result<Greeting, String> {
        match origin {
            Origin::Start(spec, personality) => {
                self.make(&spec).await?;
                Ok(match spec.source {
                    Source::Template => {
                        Greeting::Newborn { image: spec.image.manifest.environment, personality }
                    }
                    Source::Snapshot(_) => Greeting::Newcomer(personality),
                })
            }
            Origin::Resume(spec) => {
                // What an earlier pause could not remove would count as made.
                let cleared = timeout(self.bounds.remove, self.backend.destroy(&self.id)).await;
                match cleared {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Err(describe(&error)),
                    Err(_) => return Err("removing what was left took too long".to_owned()),
                }
                self.make(&spec).await?;
                Ok(Greeting::Sleeper)
            }
            Origin::Adopt => {
                match timeout(self.bounds.proceed, self.backend.proceed(&self.id)).await {
                    Ok(Ok(())) | Ok(Err(BackendError::NotFound)) => {}
                    Ok(Err(error)) => {
                        let error = describe(&error);
                        tracing::warn!(sandbox.id = %self.id, error, "cannot let a machine go on");
                    }
                    Err(_) => {
                        tracing::warn!(sandbox.id = %self.id, "letting a machine go on took too long");
                    }
                }
                Ok(Greeting::Adopted)
            }
        }
    }

    async fn make(&self, spec: &SandboxSpec) -> Result<(), String> {
        let bounded = |step: &'static str, error: Option<BackendError>| match error {
            None => format!("{step} took too long"),
            Some(error) => describe(&error),
        };
        match timeout(self.bounds.prepare, self.backend.prepare(spec)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(bounded("preparing the template", Some(error))),
            Err(_) => return Err(bounded("preparing the template", None)),
        }
        match timeout(self.bounds.create, self.backend.create(&self.id, spec)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(bounded("making the machine", Some(error))),
            Err(_) => Err(bounded("making the machine", None)),
        }
    }

    /// Holds a link for as long as the guest answers. The first session begins
    /// with the greeting.
    async fn keep_link(&self, greeting: Greeting) -> Event {
        let mut lost_since = Instant::now();
        let mut last = String::from("no link yet");
        let mut pipe = greeting.pipe();
        let mut greeting = Some(greeting);
        loop {
            let session = self.session(pipe, &mut greeting, &mut last).await;
            pipe = link::Pipe::Used;
            match session {
                Session::Refused(why) => return Event::StartFailed(why),
                Session::Broke { lived: true } => lost_since = Instant::now(),
                Session::Broke { lived: false } => {}
            }
            self.link.send_replace(None);
            if lost_since.elapsed() > self.bounds.reconnect {
                return Event::GuestLost(format!("the guest does not answer: {last}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn session(
        &self,
        state: link::Pipe,
        greeting: &mut Option<Greeting>,
        last: &mut String,
    ) -> Session {
        let pipe = match self.backend.connect(&self.id).await {
            Ok(pipe) => pipe,
            Err(error) => {
                *last = describe(&error);
                return Session::Broke { lived: false };
            }
        };
        let begun = Instant::now();
        let take = |incoming| egress::take(self.egress.clone(), self.id.clone(), incoming);
        let establishing = link::establish_taking(pipe, state, self.random_u32(), take);
        let (link, living) = match establishing.await {
            Ok(established) => established,
            Err(error) => {
                *last = error.to_string();
                return Session::Broke { lived: false };
            }
        };
        let greet_us = micros(begun);
        let greeted = async {
            let mut control = link.control().await.map_err(ControlError::Lost)?;
            let begun = Instant::now();
            self.greet(&mut control, greeting.as_ref()).await?;
            let identify_us = micros(begun);
            tracing::debug!(sandbox.id = %self.id, greet_us, identify_us, "the guest answered");
            Ok::<_, ControlError>(control)
        };
        let mut lived = false;
        let beating = async {
            let control = match greeted.await {
                Ok(control) => control,
                Err(why) => return Some(why),
            };
            lived = true;
            self.link.send_replace(Some(link.clone()));
            self.report(Event::GuestReady).await;
            *last = self.heartbeat(control).await;
            None
        };
        tokio::select! {
            refused = beating => {
                if let Some(why) = refused {
                    if greeting.as_ref().is_some_and(|greeting| greeting.is_final(&why)) {
                        return Session::Refused(describe(&why));
                    }
                    *last = describe(&why);
                }
            }
            ended = living => {
                if let Err(error) = ended {
                    *last = error.to_string();
                }
            }
        }
        if lived {
            *greeting = None;
        }
        Session::Broke { lived }
    }

    /// Tells the guest what it has to know before anyone may reach it.
    async fn greet(
        &self,
        control: &mut Control,
        greeting: Option<&Greeting>,
    ) -> Result<(), ControlError> {
        let request = match greeting {
            Some(Greeting::Newborn { image, personality }) => {
                Request::Identify(Box::new(self.identity(image, personality)))
            }
            Some(Greeting::Newcomer(personality)) => {
                Request::Become(Box::new(self.newcomer(personality)))
            }
            Some(Greeting::Sleeper | Greeting::Adopted) => self.wake(),
            // A hello is no sign of life: a guest that answers those and
            // nothing else is lost.
            None => return control.ping(0, self.bounds.heartbeat).await,
        };
        let answered = control.call(&request, self.bounds.identify).await;
        if let (Ok(_), Some(mode)) = (&answered, greeting.and_then(Greeting::network)) {
            let request = Request::Network(Box::new(network(mode)));
            control.call(&request, self.bounds.identify).await?;
        }
        match (answered, greeting) {
            // It ran before and it runs; that it cannot be told the time is no
            // reason to end it.
            (Err(ControlError::Failed(why)), Some(Greeting::Adopted)) => {
                tracing::warn!(sandbox.id = %self.id, why, "a guest was not told the time");
                Ok(())
            }
            (answered, _) => answered.map(drop),
        }
    }

    /// Asks for signs of life until one does not come.
    async fn heartbeat(&self, mut control: Control) -> String {
        let mut still = self.still.clone();
        let mut seen = *still.borrow_and_update();
        for nonce in 1.. {
            tokio::select! {
                () = tokio::time::sleep(self.bounds.heartbeat) => {}
                () = moved(&mut still, seen) => {}
            }
            let moves = *still.borrow_and_update();
            if moves % 2 == 1 {
                continue;
            }
            let stood = moves != std::mem::replace(&mut seen, moves);
            // Its own bound would count the time in which it stands still.
            let asking = async {
                if stood {
                    control.call(&self.wake(), Duration::MAX).await.map(drop)
                } else {
                    control.ping(nonce, Duration::MAX).await
                }
            };
            let answered = tokio::select! {
                answered = asking => answered,
                () = patience(&mut still, self.bounds.heartbeat) => {
                    Err(ControlError::Lost(std::io::ErrorKind::TimedOut.into()))
                }
            };
            if let Err(error) = answered {
                tracing::warn!(sandbox.id = %self.id, %error, "no sign of life; the link is reset");
                return error.to_string();
            }
        }
        String::new()
    }

    fn identity(&self, image: &BTreeMap<String, String>, personality: &Personality) -> Identity {
        // What the image sets, the caller may set otherwise.
        let mut environment = image.clone();
        let given = personality.environment.expose();
        environment.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let text = self.id.as_str();
        Identity {
            sandbox: text.to_owned(),
            hostname: hostname(text),
            machine_id: self.random(),
            unix_nanos: self.unix_nanos(),
            entropy: self.random(),
            environment: environment.into_iter().collect(),
            accounts: personality.accounts.uids(),
        }
    }

    fn newcomer(&self, personality: &Personality) -> Newcomer {
        let text = self.id.as_str();
        let given = personality.environment.expose();
        Newcomer {
            sandbox: text.to_owned(),
            hostname: hostname(text),
            machine_id: self.random(),
            unix_nanos: self.unix_nanos(),
            entropy: self.random(),
            environment: given.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }

    fn wake(&self) -> Request {
        Request::Wake { unix_nanos: self.unix_nanos(), entropy: self.random() }
    }

    fn unix_nanos(&self) -> u64 {
        let now = (self.sources.clock)().0;
        u64::try_from(now).unwrap_or(0).saturating_mul(1_000_000)
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.sources.random)(&mut bytes);
        bytes
    }

    fn random_u32(&self) -> u32 {
        u32::from_le_bytes(self.random())
    }
}

/// What a guest is told first.
enum Greeting {
    /// Of a machine that nobody is yet.
    Newborn {
        /// Variables that the image sets.
        image: BTreeMap<String, String>,
        personality: Personality,
    },
    /// Of a copy of a machine that was somebody.
    Newcomer(Personality),
    /// Of a machine that stood still and stays who it was.
    Sleeper,
    /// Of a machine that another process drove.
    Adopted,
}

impl Greeting {
    /// A clone wakes between two frames, so its first host need not make room.
    /// Whatever was captured later may be in the middle of one.
    fn pipe(&self) -> link::Pipe {
        match self {
            Self::Newborn { .. } => link::Pipe::Fresh,
            Self::Newcomer(_) | Self::Sleeper | Self::Adopted => link::Pipe::Used,
        }
    }

    /// What the guest is told of its network, where that is for us to say. A new
    /// machine has none, and need not be told so; a copy has that of its original.
    fn network(&self) -> Option<EgressMode> {
        match self {
            Self::Newborn { personality, .. } => {
                Some(personality.network).filter(|mode| *mode != EgressMode::Off)
            }
            Self::Newcomer(personality) => Some(personality.network),
            Self::Sleeper | Self::Adopted => None,
        }
    }

    /// Whether there is no use in greeting again.
    fn is_final(&self, error: &ControlError) -> bool {
        match (self, error) {
            (Self::Newborn { .. }, _) => true,
            (Self::Newcomer(_) | Self::Sleeper, ControlError::Failed(_)) => true,
            (Self::Newcomer(_) | Self::Sleeper, ControlError::Lost(_)) => false,
            (Self::Adopted, _) => false,
        }
    }
}

enum Session {
    /// The guest of a new machine would not take its identity.
    Refused(String),
    /// It ended; whether the guest had answered.
    Broke { lived: bool },
}

/// Waits until the machine moves again after it stood still.
async fn moved(still: &mut watch::Receiver<u64>, seen: u64) {
    // The driver outlives this task.
    if still.wait_for(|moves| *moves != seen && moves % 2 == 0).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for `bound`, in which time that the machine stands still does not count.
async fn patience(still: &mut watch::Receiver<u64>, bound: Duration) {
    loop {
        if still.wait_for(|moves| moves % 2 == 0).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(bound) => return,
            stands = still.wait_for(|moves| moves % 2 == 1) => if stands.is_err() { return },
        }
    }
}

fn hostname(id: &str) -> String {
    id.replace('_', "-")
}

/// An error and its causes in one line, for an operator and the ending.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
