//! From nothing to a guest that answers, and keeping it so.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use domain::id::SandboxId;
use guest_protocol::control::{Identity, Request};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use crate::{
    backend::{Backend, BackendError},
    driver::{Bounds, Origin},
    host::Sources,
    lifecycle::Event,
    link::{self, Control, Link},
    spec::{Personality, SandboxSpec},
};

/// The machine's side of a driver. Reports what happens; decides nothing.
pub(super) struct Machine {
    pub(super) id: SandboxId,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) sources: Sources,
    pub(super) bounds: Bounds,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) link: watch::Sender<Option<Link>>,
}

impl Machine {
    /// Reports until there is nothing more to report.
    pub(super) async fn run(self, origin: Origin) {
        let identity = match origin {
            Origin::Adopt => None,
            Origin::Start(spec, personality) => {
                if let Err(why) = self.make(&spec).await {
                    self.report(Event::StartFailed(why)).await;
                    return;
                }
                Some(Newborn { image: spec.image.manifest.environment, personality })
            }
        };
        let why = tokio::select! {
            why = self.backend.wait(&self.id) => Event::MachineExited(why),
            event = self.keep_link(identity) => event,
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

    /// Holds a link for as long as the guest answers. The first session of a
    /// new machine gives it its identity.
    async fn keep_link(&self, mut identity: Option<Newborn>) -> Event {
        let mut lost_since = Instant::now();
        let mut last = String::from("no link yet");
        // A clone wakes between two frames, so its first host need not make room.
        let mut pipe = if identity.is_some() { link::Pipe::Fresh } else { link::Pipe::Used };
        loop {
            let session = self.session(pipe, &mut identity, &mut last).await;
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
        identity: &mut Option<Newborn>,
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
        let (link, living) = match link::establish(pipe, state, self.random_u32()).await {
            Ok(established) => established,
            Err(error) => {
                *last = error.to_string();
                return Session::Broke { lived: false };
            }
        };
        let greet_us = micros(begun);
        let greeting = async {
            let mut control = link.control().await.map_err(|error| error.to_string())?;
            if let Some(newborn) = identity.as_ref() {
                let begun = Instant::now();
                let request = Request::Identify(Box::new(self.identity(newborn)));
                let answered = control.call(&request, self.bounds.identify).await;
                answered.map_err(|error| error.to_string())?;
                let identify_us = micros(begun);
                tracing::debug!(sandbox.id = %self.id, greet_us, identify_us, "the guest knows who it is");
            } else {
                // A hello is no sign of life: a guest that answers those and
                // nothing else is lost.
                let answered = control.ping(0, self.bounds.heartbeat).await;
                answered.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(control)
        };
        let mut lived = false;
        let beating = async {
            let control = match greeting.await {
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
                    if identity.is_some() {
                        return Session::Refused(why);
                    }
                    *last = why;
                }
            }
            ended = living => {
                if let Err(error) = ended {
                    *last = error.to_string();
                }
            }
        }
        if lived {
            *identity = None;
        }
        Session::Broke { lived }
    }

    /// Asks for signs of life until one does not come.
    async fn heartbeat(&self, mut control: Control) -> String {
        for nonce in 0.. {
            tokio::time::sleep(self.bounds.heartbeat).await;
            if let Err(error) = control.ping(nonce, self.bounds.heartbeat).await {
                tracing::warn!(sandbox.id = %self.id, %error, "no sign of life; the link is reset");
                return error.to_string();
            }
        }
        String::new()
    }

    fn identity(&self, newborn: &Newborn) -> Identity {
        let Newborn { image, personality } = newborn;
        // What the image sets, the caller may set otherwise.
        let mut environment = image.clone();
        let given = personality.environment.expose();
        environment.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let mut machine_id = [0; 16];
        let mut entropy = [0; 32];
        (self.sources.random)(&mut machine_id);
        (self.sources.random)(&mut entropy);
        let now = (self.sources.clock)().0;
        let text = self.id.as_str();
        Identity {
            sandbox: text.to_owned(),
            hostname: text.replace('_', "-"),
            machine_id,
            unix_nanos: u64::try_from(now).unwrap_or(0).saturating_mul(1_000_000),
            entropy,
            environment: environment.into_iter().collect(),
            accounts: personality.accounts.uids(),
        }
    }

    fn random_u32(&self) -> u32 {
        let mut bytes = [0; 4];
        (self.sources.random)(&mut bytes);
        u32::from_le_bytes(bytes)
    }
}

/// A machine that nobody is yet.
struct Newborn {
    /// Variables that the image sets.
    image: BTreeMap<String, String>,
    personality: Personality,
}

enum Session {
    /// The guest of a new machine would not take its identity.
    Refused(String),
    /// It ended; whether the guest had answered.
    Broke { lived: bool },
}

/// An error and its causes in one line, for an operator and the ending.
fn describe(error: &dyn std::error::Error) -> String {
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
