//! The sandboxes of this machine.
//!
//! One driver task for each; this holds their handles and nothing else. It
//! knows no caller and no rule: whoever may do what is decided before.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use domain::{
    ending::{Cause, Ending},
    id::{SandboxId, SnapshotId},
    isolation::IsolationClass,
    time::{Clock, Timestamp},
};
use guest_protocol::{mux, preface::Preface};
use tokio::sync::{mpsc, oneshot, watch};

pub use crate::ledger::{Ledger, LedgerError, NoLedger, Recorded};
use crate::{
    activity::{Activity, Stream},
    backend::{Backend, BackendError, Captured, Sealed, Then},
    driver::{Bounds, Command, Driver, Origin},
    egress::{Egress, NoEgress},
    gauge::{Room, Taken},
    lifecycle::{Shelved, State},
    link::Link,
    spec::{Personality, SandboxSpec},
};

/// How long a request waits for a link that is being re-established.
const LINK_WAIT: Duration = Duration::from_secs(15);

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
    /// It is being paused, or is.
    #[error("the sandbox is paused")]
    Paused,
    /// It is being captured already.
    #[error("the sandbox is being captured already")]
    Busy,
    /// It ended.
    #[error("the sandbox has ended: {0}")]
    Ended(Ending),
    /// What was done contradicts the record, and was undone.
    #[error("it could not be recorded: {0}")]
    NotRecorded(String),
    /// It could not be resumed and is as paused as it was.
    #[error("{0}")]
    NotResumed(String),
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
    egress: Arc<dyn Egress>,
    driven: Mutex<HashMap<SandboxId, Handle>>,
}

#[derive(Clone, Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
    link: watch::Receiver<Option<Link>>,
    activity: Activity,
    /// Whether it has, or had, volumes.
    volumes: Arc<AtomicBool>,
}

impl Host {
    /// A host without sandboxes yet.
    pub fn new(backend: Arc<dyn Backend>, ledger: Arc<dyn Ledger>, sources: Sources) -> Self {
        Self::with_bounds(backend, ledger, sources, Bounds::default())
    }

    /// The same with a way out for its sandboxes.
    pub fn with_egress(
        backend: Arc<dyn Backend>,
        ledger: Arc<dyn Ledger>,
        sources: Sources,
        egress: Arc<dyn Egress>,
    ) -> Self {
        Self::with(backend, ledger, sources, Bounds::default(), egress)
    }

    /// The same with other bounds.
    pub fn with_bounds(
        backend: Arc<dyn Backend>,
        ledger: Arc<dyn Ledger>,
        sources: Sources,
        bounds: Bounds,
    ) -> Self {
        Self::with(backend, ledger, sources, bounds, Arc::new(NoEgress))
    }

    fn with(
        backend: Arc<dyn Backend>,
        ledger: Arc<dyn Ledger>,
        sources: Sources,
        bounds: Bounds,
        egress: Arc<dyn Egress>,
    ) -> Self {
        let driven = Mutex::default();
        Self { shared: Arc::new(Shared { backend, ledger, sources, bounds, egress, driven }) }
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
            State::Stopping(ending) | State::Ended(ending) => Err(ending),
            _ => Ok(()),
        }
    }

    /// Starts a sandbox that is on record as paused from its own snapshot.
    ///
    /// Returns when it runs again and that is on record. Dropping the future does
    /// not stop it.
    ///
    /// # Errors
    /// [`HostError::NotResumed`] when it is still paused; nothing else is left.
    pub async fn resume(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        deadline: Option<Timestamp>,
    ) -> Result<(), HostError> {
        let handle = self.drive(id, Origin::Resume(Box::new(spec)), deadline);
        let over = |state: &State| !matches!(state, State::Resuming | State::Shelving(_));
        match settled(handle.state, over).await {
            State::Shelving(Shelved::NotResumed(why)) | State::Paused(Shelved::NotResumed(why)) => {
                Err(HostError::NotResumed(why))
            }
            // The server is going away, and the next one goes by the record.
            State::Resuming => Err(HostError::NotResumed("the server is shutting down".into())),
            State::Stopping(ending) | State::Ended(ending) => Err(HostError::Ended(ending)),
            _ => Ok(()),
        }
    }

    /// Captures a sandbox and removes its machine.
    ///
    /// Returns when that is on record and the machine is gone. On error it runs
    /// on, unless the error says that it ended.
    pub async fn pause(&self, id: &SandboxId, to: Sealed) -> Result<Captured, HostError> {
        self.captured(id, to, Then::Hold).await
    }

    /// Captures a sandbox that goes on.
    pub async fn capture(&self, id: &SandboxId, to: Sealed) -> Result<Captured, HostError> {
        self.captured(id, to, Then::Continue).await
    }

    async fn captured(
        &self,
        id: &SandboxId,
        to: Sealed,
        then: Then,
    ) -> Result<Captured, HostError> {
        let handle = self.handle(id)?;
        let (answer, told) = oneshot::channel();
        let sent = handle.commands.send(Command::Capture(to, then, answer)).await;
        if sent.is_ok()
            && let Ok(outcome) = told.await
        {
            return outcome;
        }
        // The driver did not come to an answer: something else came first.
        match &*handle.state.borrow() {
            State::Stopping(ending) | State::Ended(ending) => Err(HostError::Ended(ending.clone())),
            State::Shelving(_) | State::Paused(_) => Err(HostError::Paused),
            _ => Err(HostError::NotFound),
        }
    }

    /// Makes a machine that no driver owns: it is nobody until a sandbox with its
    /// id is started.
    pub async fn make_ready(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), HostError> {
        let made = async {
            self.shared.backend.prepare(spec).await?;
            self.shared.backend.create(id, spec).await
        };
        let bound = self.shared.bounds.prepare + self.shared.bounds.create;
        let late = |_| BackendError::failed("making a machine ahead", "it took too long");
        let made = tokio::time::timeout(bound, made).await.map_err(late);
        made.and_then(|made| made).map_err(HostError::Backend)
    }

    /// Removes a machine that no driver owns.
    pub async fn unmake(&self, id: &SandboxId) -> Result<(), HostError> {
        self.shared.backend.destroy(id).await.map_err(HostError::Backend)
    }

    /// Waits until a machine has ended.
    pub async fn gone(&self, id: &SandboxId) {
        self.shared.backend.wait(id).await;
    }

    /// Says whether a sandbox can be started from a snapshot here, now.
    pub async fn loadable(&self, snapshot: &SnapshotId) -> Result<(), HostError> {
        self.shared.backend.loadable(snapshot).await.map_err(HostError::Backend)
    }

    /// Removes the files of a snapshot.
    pub async fn forget(&self, snapshot: &SnapshotId) -> Result<(), HostError> {
        self.shared.backend.forget(snapshot).await.map_err(HostError::Backend)
    }

    /// Lists the snapshots that exist, whole or half-made.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotId>, HostError> {
        self.shared.backend.snapshots().await.map_err(HostError::Backend)
    }

    /// For how long nobody has used a running sandbox; nothing while somebody
    /// does, and where it does not run here.
    pub fn idle(&self, id: &SandboxId) -> Option<Duration> {
        let handle = self.handle(id).ok()?;
        running(&handle).ok()?;
        handle.activity.idle()
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
        let detail = match cause {
            Cause::Requested => "it was terminated on request",
            Cause::TimeLimit => "its time limit passed",
            Cause::StartFailed => "it did not start",
            Cause::MachineExited => "its machine ended",
            Cause::GuestLost => "its guest did not answer",
            Cause::Expired => "it was paused for longer than that is kept",
        };
        self.end(id, Ending::new(cause, detail)).await
    }

    /// The same, for a reason of one's own.
    pub async fn end(&self, id: &SandboxId, ending: Ending) -> Result<Ending, HostError> {
        let handle = self.handle(id)?;
        // A driver that does not listen any more has already ended it.
        drop(handle.commands.send(Command::Stop(ending)).await);
        match settled(handle.state, |state| matches!(state, State::Ended(_))).await {
            State::Ended(ending) => Ok(ending),
            // Released, or paused before it heard of this.
            _ => Err(HostError::NotFound),
        }
    }

    /// Waits until the sandbox has ended and nothing of it is left.
    pub async fn ended(&self, id: &SandboxId) -> Result<Ending, HostError> {
        let handle = self.handle(id)?;
        match settled(handle.state, |state| matches!(state, State::Ended(_))).await {
            State::Ended(ending) => Ok(ending),
            // Released, or paused before it heard of this.
            _ => Err(HostError::NotFound),
        }
    }

    /// Moves the time limit.
    pub async fn set_deadline(&self, id: &SandboxId, deadline: Timestamp) -> Result<(), HostError> {
        let handle = self.handle(id)?;
        running(&handle)?;
        let sent = handle.commands.send(Command::SetDeadline(Some(deadline))).await;
        sent.map_err(|_| HostError::NotFound)
    }

    /// Opens a stream to the guest API of the sandbox, which is in use while the
    /// stream exists.
    ///
    /// Waits a little for a link that is being re-established.
    pub async fn open(&self, id: &SandboxId) -> Result<Stream, HostError> {
        let used = self.handle(id)?.activity.begin();
        Ok(Stream::new(self.stream(id, Preface::GuestApi).await?, used))
    }

    /// Opens a stream into the sandbox that is no use of it.
    pub(crate) async fn stream(
        &self,
        id: &SandboxId,
        preface: Preface,
    ) -> Result<mux::Stream, HostError> {
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

    /// Opens a stream to the guest API that is no use of the sandbox: to look at
    /// how it is does not keep it awake.
    pub async fn look(&self, id: &SandboxId) -> Result<mux::Stream, HostError> {
        self.stream(id, Preface::GuestApi).await
    }

    /// What the host has and has left.
    pub async fn room(&self) -> Result<Room, HostError> {
        self.shared.backend.room().await.map_err(HostError::Backend)
    }

    /// What a sandbox takes of the host.
    pub async fn taken(&self, id: &SandboxId) -> Result<Taken, HostError> {
        self.shared.backend.taken(id).await.map_err(HostError::Backend)
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

    /// Remembers that a sandbox has volumes, so that what waits to be written to
    /// them is written before its machine is ended.
    pub fn has_volumes(&self, id: &SandboxId) {
        if let Ok(handle) = self.handle(id) {
            handle.volumes.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn sources(&self) -> Sources {
        self.shared.sources
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    fn drive(&self, id: SandboxId, origin: Origin, deadline: Option<Timestamp>) -> Handle {
        let begun = match origin {
            Origin::Start(..) => State::Provisioning,
            Origin::Resume(_) => State::Resuming,
            Origin::Adopt => State::Running,
        };
        let (commands, wishes) = mpsc::channel(8);
        let (state_sender, state) = watch::channel(begun);
        let (link_sender, link) = watch::channel(None);
        let disks = match &origin {
            Origin::Start(spec, _) | Origin::Resume(spec) => !spec.disks.is_empty(),
            Origin::Adopt => false,
        };
        let volumes = Arc::new(AtomicBool::new(disks));
        let activity = Activity::new();
        let handle = Handle { commands, state, link, activity, volumes: Arc::clone(&volumes) };
        match self.driven().entry(id.clone()) {
            // One driver owns one sandbox. One that has removed the machine of a
            // pause owns nothing any more.
            Entry::Occupied(mut existing) => {
                if !matches!(*existing.get().state.borrow(), State::Paused(_)) {
                    return existing.get().clone();
                }
                existing.insert(handle.clone());
            }
            Entry::Vacant(vacant) => {
                vacant.insert(handle.clone());
            }
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
            volumes,
            egress: self.shared.egress.clone(),
            stop: None,
        };
        let shared = self.shared.clone();
        let own = handle.commands.clone();
        // Owned by the map: it ends with the sandbox, or when released.
        tokio::spawn(async move {
            driver.run(origin).await;
            if let Entry::Occupied(entry) = lock(&shared.driven).entry(id)
                && entry.get().commands.same_channel(&own)
            {
                entry.remove();
            }
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
        State::Running | State::Copying => Ok(()),
        State::Provisioning | State::Resuming => Err(HostError::NotRunning),
        State::Pausing | State::Held | State::Shelving(_) | State::Paused(_) => {
            Err(HostError::Paused)
        }
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
