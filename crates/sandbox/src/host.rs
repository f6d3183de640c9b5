//! The sandboxes of this machine.
//!
//! One driver task for each; this holds their handles and nothing else. It
//! knows no caller and no rule: whoever may do what is decided before.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use domain::{
    ending::{Cause, Ending},
    id::SandboxId,
    isolation::IsolationClass,
    time::{Clock, Timestamp},
};
use guest_protocol::{mux::Stream, preface::Preface};
use tokio::sync::{mpsc, watch};

use crate::{
    backend::{Backend, BackendError},
    driver::{Bounds, Command, Driver, Origin},
    lifecycle::State,
    link::Link,
    spec::{Personality, SandboxSpec},
};

/// How long a request waits for a link that is being re-established.
const LINK_WAIT: Duration = Duration::from_secs(15);

/// Why a ledger could not be written.
pub type LedgerError = Box<dyn std::error::Error + Send + Sync>;

/// Where facts about sandboxes are recorded, before anyone acts on them.
#[async_trait]
pub trait Ledger: fmt::Debug + Send + Sync {
    /// The guest answered. Recording it twice is not an error.
    async fn running(&self, id: &SandboxId) -> Result<(), LedgerError>;

    /// Nothing of the sandbox is left. Recording it twice is not an error.
    async fn ended(&self, id: &SandboxId, ending: &Ending) -> Result<(), LedgerError>;
}

/// A ledger for sandboxes that only this process knows.
#[derive(Clone, Copy, Debug)]
pub struct NoLedger;

#[async_trait]
impl Ledger for NoLedger {
    async fn running(&self, _: &SandboxId) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn ended(&self, _: &SandboxId, _: &Ending) -> Result<(), LedgerError> {
        Ok(())
    }
}

/// Time and randomness, passed in.
#[derive(Clone, Copy)]
pub struct Sources {
    /// The wall clock.
    pub clock: Clock,
    /// Fills a buffer from the operating system's generator.
    pub random: fn(&mut [u8]),
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sources")
    }
}

/// Why something could not be done with a sandbox of this host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No driver has it: it ended long ago, or was never here.
    #[error("the sandbox is not on this host")]
    NotFound,
    /// It is being made.
    #[error("the sandbox is not running yet")]
    NotRunning,
    /// It ended.
    #[error("the sandbox has ended: {0}")]
    Ended(Ending),
    /// It runs, and its guest does not answer.
    #[error("the sandbox does not answer")]
    Unreachable(#[source] io::Error),
    /// The backend could not do it.
    #[error("the backend could not do it")]
    Backend(#[source] BackendError),
}

/// The sandboxes of this machine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backend: Arc<dyn Backend>,
    ledger: Arc<dyn Ledger>,
    sources: Sources,
    bounds: Bounds,
    driven: Mutex<HashMap<SandboxId, Handle>>,
}

#[derive(Clone, Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
    link: watch::Receiver<Option<Link>>,
}

impl Host {
    /// A host without sandboxes yet.
    pub fn new(backend: Arc<dyn Backend>, ledger: Arc<dyn Ledger>, sources: Sources) -> Self {
        Self::with_bounds(backend, ledger, sources, Bounds::default())
    }

    /// The same with other bounds.
    pub fn with_bounds(
        backend: Arc<dyn Backend>,
        ledger: Arc<dyn Ledger>,
        sources: Sources,
        bounds: Bounds,
    ) -> Self {
        let driven = Mutex::default();
        Self { shared: Arc::new(Shared { backend, ledger, sources, bounds, driven }) }
    }

    /// How strongly sandboxes are separated here.
    pub fn isolation(&self) -> IsolationClass {
        self.shared.backend.isolation()
    }

    /// Makes what all sandboxes of this spec share.
    pub async fn prepare(&self, spec: &SandboxSpec) -> Result<(), HostError> {
        self.shared.backend.prepare(spec).await.map_err(HostError::Backend)
    }

    /// Starts a sandbox that is on record as provisioning.
    ///
    /// Returns when it runs. Dropping the future does not stop the start: the
    /// driver owns it.
    ///
    /// # Errors
    /// How it ended, when it never came up.
    pub async fn start(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        personality: Personality,
        deadline: Option<Timestamp>,
    ) -> Result<(), Ending> {
        let handle = self.drive(id, Origin::Start(Box::new(spec), personality), deadline);
        match settled(handle.state, |state| !matches!(state, State::Provisioning)).await {
            State::Provisioning | State::Running => Ok(()),
            State::Stopping(ending) | State::Ended(ending) => Err(ending),
        }
    }

    /// Takes over a machine that ran when an earlier process ended.
    ///
    /// Returns at once; if the machine or its guest is gone, the driver finds
    /// out and records it.
    pub fn adopt(&self, id: SandboxId, deadline: Option<Timestamp>) {
        self.drive(id, Origin::Adopt, deadline);
    }

    /// Removes machines that are not among `known`. Returns how many.
    pub async fn remove_unknown(&self, known: &[SandboxId]) -> Result<usize, HostError> {
        let mut removed = 0;
        for id in self.shared.backend.list().await.map_err(HostError::Backend)? {
            if !known.contains(&id) {
                self.shared.backend.destroy(&id).await.map_err(HostError::Backend)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Ends a sandbox and returns when nothing of it is left. Asking again
    /// returns the first ending.
    pub async fn terminate(&self, id: &SandboxId, cause: Cause) -> Result<Ending, HostError> {
        let handle = self.handle(id)?;
        let detail = match cause {
            Cause::Requested => "it was terminated on request",
            Cause::TimeLimit => "its time limit passed",
            Cause::StartFailed => "it did not start",
            Cause::MachineExited => "its machine ended",
            Cause::GuestLost => "its guest did not answer",
        };
        // A driver that does not listen any more has already ended it.
        drop(handle.commands.send(Command::Stop(Ending::new(cause, detail))).await);
        match settled(handle.state, |state| matches!(state, State::Ended(_))).await {
            State::Ended(ending) => Ok(ending),
            State::Provisioning | State::Running | State::Stopping(_) => Err(HostError::NotFound),
        }
    }

    /// Waits until the sandbox has ended and nothing of it is left.
    pub async fn ended(&self, id: &SandboxId) -> Result<Ending, HostError> {
        let handle = self.handle(id)?;
        match settled(handle.state, |state| matches!(state, State::Ended(_))).await {
            State::Ended(ending) => Ok(ending),
            State::Provisioning | State::Running | State::Stopping(_) => Err(HostError::NotFound),
        }
    }

    /// Moves the time limit.
    pub async fn set_deadline(&self, id: &SandboxId, deadline: Timestamp) -> Result<(), HostError> {
        let handle = self.handle(id)?;
        running(&handle)?;
        let sent = handle.commands.send(Command::SetDeadline(Some(deadline))).await;
        sent.map_err(|_| HostError::NotFound)
    }

    /// Opens a stream into the sandbox.
    ///
    /// Waits a little for a link that is being re-established.
    pub async fn open(&self, id: &SandboxId, preface: Preface) -> Result<Stream, HostError> {
        let mut handle = self.handle(id)?;
        running(&handle)?;
        let connected = handle.link.wait_for(Option::is_some);
        let link = match tokio::time::timeout(LINK_WAIT, connected).await {
            Ok(Ok(link)) => link.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let Some(link) = link else {
            running(&handle)?;
            return Err(HostError::Unreachable(io::ErrorKind::TimedOut.into()));
        };
        link.open(preface).await.map_err(HostError::Unreachable)
    }

    /// The last output of the machine's console.
    pub async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, HostError> {
        self.shared.backend.console(id).await.map_err(HostError::Backend)
    }

    /// Stops driving every sandbox and lets the machines live.
    pub async fn release(&self) {
        let handles: Vec<_> = self.driven().drain().map(|(_, handle)| handle).collect();
        for mut handle in handles {
            drop(handle.commands.send(Command::Release).await);
            // The state's sender goes with the driver.
            while handle.state.changed().await.is_ok() {}
        }
    }

    fn drive(&self, id: SandboxId, origin: Origin, deadline: Option<Timestamp>) -> Handle {
        let begun = match origin {
            Origin::Start(..) => State::Provisioning,
            Origin::Adopt => State::Running,
        };
        let (commands, wishes) = mpsc::channel(8);
        let (state_sender, state) = watch::channel(begun);
        let (link_sender, link) = watch::channel(None);
        let handle = Handle { commands, state, link };
        match self.driven().entry(id.clone()) {
            // One driver owns one sandbox.
            Entry::Occupied(existing) => return existing.get().clone(),
            Entry::Vacant(vacant) => vacant.insert(handle.clone()),
        };
        let driver = Driver {
            id: id.clone(),
            backend: self.shared.backend.clone(),
            ledger: self.shared.ledger.clone(),
            sources: self.shared.sources,
            bounds: self.shared.bounds,
            deadline,
            commands: wishes,
            state: state_sender,
            link: link_sender,
        };
        let shared = self.shared.clone();
        // Owned by the map: it ends with the sandbox, or when released.
        tokio::spawn(async move {
            driver.run(origin).await;
            lock(&shared.driven).remove(&id);
        });
        handle
    }

    fn handle(&self, id: &SandboxId) -> Result<Handle, HostError> {
        self.driven().get(id).cloned().ok_or(HostError::NotFound)
    }

    fn driven(&self) -> MutexGuard<'_, HashMap<SandboxId, Handle>> {
        lock(&self.shared.driven)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held: the map is only looked up and changed.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn running(handle: &Handle) -> Result<(), HostError> {
    match &*handle.state.borrow() {
        State::Running => Ok(()),
        State::Provisioning => Err(HostError::NotRunning),
        State::Stopping(ending) | State::Ended(ending) => Err(HostError::Ended(ending.clone())),
    }
}

/// Waits for a state; the last one known if the driver is gone before.
async fn settled(mut states: watch::Receiver<State>, wanted: fn(&State) -> bool) -> State {
    if let Ok(state) = states.wait_for(wanted).await {
        return state.clone();
    }
    states.borrow().clone()
}
