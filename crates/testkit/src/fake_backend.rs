//! A backend without machines: each sandbox is a task that plays the guest.
//!
//! The link, the mux and the control stream are the real ones; only what is
//! behind them is scripted ([`crate::fake_guest`]). It passes the same contract
//! as the real backends, and a test can make it fail where it wants, or stop
//! for ever there, as a process does that is killed.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use domain::{
    id::{SandboxId, SnapshotId, VolumeId},
    isolation::IsolationClass,
};
pub use sandbox::gauge::Room;
use sandbox::{
    backend::{Backend, BackendError, Captured, Pipe, Sealed, Then},
    gauge::Taken,
    spec::{SandboxSpec, Source},
    volumes::Disk,
};
use tokio::{io::DuplexStream, runtime::Handle, sync::watch, task::JoinHandle};

use crate::fake_guest::{FakeGuest, Port};

/// Bytes in flight between the host and a fake guest.
const PIPE: usize = 64 * 1024;

/// What a snapshot of a fake machine says it takes.
const STORED: Captured = Captured { stored_bytes: 4096, memory_bytes: 8192 };

/// A backend for tests.
#[derive(Clone, Default)]
pub struct FakeBackend {
    machines: Arc<Mutex<HashMap<SandboxId, Machine>>>,
    fail_attach: Arc<Mutex<Option<String>>>,
    snapshots: Arc<Mutex<HashMap<SnapshotId, Snapshot>>>,
    failing: Arc<Mutex<HashMap<Call, String>>>,
    stall: Arc<Mutex<Option<(Call, When)>>>,
    stalled: Arc<Mutex<Option<watch::Sender<bool>>>>,
    incompatible: Arc<Mutex<Option<String>>>,
    room: Arc<Mutex<Option<Room>>>,
    runtime: Option<Handle>,
}

/// A call that a test can make fail or stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Backend::create`]
    Create,
    /// [`Backend::destroy`]
    Destroy,
    /// [`Backend::capture`]
    Capture,
    /// [`Backend::proceed`]
    Proceed,
    /// [`Backend::forget`]
    Forget,
}

/// Where in a call it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing is done yet.
    Before,
    /// Everything is done, and nobody hears of it.
    After,
}

struct Snapshot {
    guest: FakeGuest,
    key: [u8; 32],
}

struct Machine {
    port: Port,
    guest: FakeGuest,
    running: JoinHandle<()>,
    exited: watch::Sender<Option<String>>,
    disks: BTreeMap<u8, (VolumeId, Lock)>,
    still: bool,
}

impl FakeBackend {
    /// A backend whose machines live on `runtime`, so that they outlive the one
    /// that asks for them.
    pub fn outliving(runtime: Handle) -> Self {
        Self { runtime: Some(runtime), ..Self::default() }
    }

    /// Makes every later `create` fail with this sentence; `None` heals it.
    pub fn fail_create(&self, why: Option<&str>) {
        self.fail(Call::Create, why);
    }

    /// Makes every later call of a kind fail with this sentence; `None` heals it.
    pub fn fail(&self, call: Call, why: Option<&str>) {
        match why {
            Some(why) => lock(&self.failing).insert(call, why.to_owned()),
            None => lock(&self.failing).remove(&call),
        };
    }

    /// Makes the next call of a kind stop there for ever. What is returned
    /// becomes true when it has.
    pub fn stall(&self, call: Call, when: When) -> watch::Receiver<bool> {
        let (sender, receiver) = watch::channel(false);
        *lock(&self.stall) = Some((call, when));
        *lock(&self.stalled) = Some(sender);
        receiver
    }

    /// Makes every snapshot one that cannot be loaded here any more.
    pub fn change_machine(&self, why: Option<&str>) {
        *lock(&self.incompatible) = why.map(str::to_owned);
    }

    /// Makes the host one that has so much; `None` one without bounds.
    pub fn have_room(&self, room: Option<Room>) {
        *lock(&self.room) = room;
    }

    /// Loses the files of a snapshot, as a disk would.
    pub fn lose(&self, snapshot: &SnapshotId) {
        lock(&self.snapshots).remove(snapshot);
    }

    /// Whether the machine stands still.
    pub fn stands_still(&self, id: &SandboxId) -> bool {
        self.machines().get(id).is_some_and(|machine| machine.still)
    }

    /// Makes every later `attach` fail with this sentence; `None` heals it.
    pub fn fail_attach(&self, why: Option<&str>) {
        *lock(&self.fail_attach) = why.map(str::to_owned);
    }

    /// What is in the slots of a machine.
    pub fn disks(&self, id: &SandboxId) -> BTreeMap<u8, VolumeId> {
        let machines = self.machines();
        let disks = machines.get(id).map(|machine| machine.disks.iter());
        disks.into_iter().flatten().map(|(slot, (volume, _))| (*slot, volume.clone())).collect()
    }

    /// Ends a machine from outside, as a crash would.
    pub fn crash(&self, id: &SandboxId, why: &str) {
        if let Some(machine) = self.machines().get(id) {
            machine.running.abort();
            machine.port.close();
            machine.exited.send_replace(Some(why.to_owned()));
        }
    }

    /// The guest of a sandbox, to look at what it was told.
    pub fn guest(&self, id: &SandboxId) -> Option<FakeGuest> {
        self.machines().get(id).map(|machine| machine.guest.clone())
    }

    async fn pass(&self, call: Call, when: When) -> Result<(), BackendError> {
        let hit = {
            let mut stall = lock(&self.stall);
            stall.take_if(|stalling| *stalling == (call, when)).is_some()
        };
        if hit {
            if let Some(stalled) = lock(&self.stalled).as_ref() {
                stalled.send_replace(true);
            }
            std::future::pending::<()>().await;
        }
        match (when, lock(&self.failing).get(&call)) {
            (When::Before, Some(why)) => Err(BackendError::failed("what was asked", why.clone())),
            _ => Ok(()),
        }
    }

    fn source(&self, source: &Source) -> Result<FakeGuest, BackendError> {
        let Source::Snapshot(sealed) = source else { return Ok(FakeGuest::default()) };
        self.compatible()?;
        let snapshots = lock(&self.snapshots);
        let snapshot = snapshots.get(&sealed.id).ok_or(BackendError::NoSnapshot)?;
        if snapshot.key != *sealed.key.expose() {
            return Err(BackendError::failed("opening the snapshot", "the key does not fit"));
        }
        Ok(snapshot.guest.copied())
    }

    fn compatible(&self) -> Result<(), BackendError> {
        match lock(&self.incompatible).clone() {
            Some(why) => Err(BackendError::Incompatible(why)),
            None => Ok(()),
        }
    }

    fn still(&self, id: &SandboxId, still: bool) -> Result<FakeGuest, BackendError> {
        let mut machines = self.machines();
        let machine = machines.get_mut(id).ok_or(BackendError::NotFound)?;
        machine.still = still;
        machine.port.freeze(still);
        Ok(machine.guest.clone())
    }

    fn machines(&self) -> MutexGuard<'_, HashMap<SandboxId, Machine>> {
        lock(&self.machines)
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("machines", &self.machines().len()).finish()
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn isolation(&self) -> IsolationClass {
        // It claims the class of the machines it stands in for, so that tests
        // of everything above it need no special case.
        IsolationClass::Microvm
    }

    async fn prepare(&self, _: &SandboxSpec) -> Result<(), BackendError> {
        Ok(())
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), BackendError> {
        self.pass(Call::Create, When::Before).await?;
        if !self.machines().contains_key(id) {
            let (port, guest) = (Port::default(), self.source(&spec.source)?);
            let held = spec.disks.iter();
            let disks = held.map(|disk| Ok((disk.slot, (disk.volume.clone(), taken(disk)?))));
            let disks = disks.collect::<Result<_, BackendError>>()?;
            let serving = guest.clone().run(port.clone());
            let running = match &self.runtime {
                Some(runtime) => runtime.spawn(serving),
                None => tokio::spawn(serving),
            };
            let (exited, _) = watch::channel(None);
            let machine = Machine { port, guest, running, exited, disks, still: false };
            self.machines().insert(id.clone(), machine);
        }
        self.pass(Call::Create, When::After).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, BackendError> {
        let machines = self.machines();
        let machine = machines.get(id).ok_or(BackendError::NotFound)?;
        let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(PIPE);
        machine.port.plug(far);
        Ok(Box::new(near))
    }

    async fn wait(&self, id: &SandboxId) -> String {
        let Some(mut exited) = self.machines().get(id).map(|machine| machine.exited.subscribe())
        else {
            return "there is no such machine".into();
        };
        match exited.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "it was removed".into(),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.pass(Call::Destroy, When::Before).await?;
        if let Some(machine) = self.machines().remove(id) {
            machine.running.abort();
            machine.port.close();
        }
        self.pass(Call::Destroy, When::After).await
    }

    async fn attach(&self, id: &SandboxId, disk: &Disk) -> Result<(), BackendError> {
        if let Some(why) = lock(&self.fail_attach).clone() {
            return Err(BackendError::failed("attaching the volume", why));
        }
        let mut machines = self.machines();
        let machine = machines.get_mut(id).ok_or(BackendError::NotFound)?;
        match machine.disks.get(&disk.slot) {
            Some((volume, _)) if *volume == disk.volume => Ok(()),
            Some(_) => Err(BackendError::failed("attaching the volume", "the slot is taken")),
            None => {
                machine.disks.insert(disk.slot, (disk.volume.clone(), taken(disk)?));
                Ok(())
            }
        }
    }

    async fn detach(&self, id: &SandboxId, slot: u8) -> Result<(), BackendError> {
        let mut machines = self.machines();
        let machine = machines.get_mut(id).ok_or(BackendError::NotFound)?;
        machine.disks.remove(&slot);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>, BackendError> {
        Ok(self.machines().keys().cloned().collect())
    }

    async fn room(&self) -> Result<Room, BackendError> {
        Ok(lock(&self.room).unwrap_or(Room::UNBOUNDED))
    }

    async fn taken(&self, id: &SandboxId) -> Result<Taken, BackendError> {
        let there = self.machines().contains_key(id);
        let taken = Taken { cpu_us: 1_500_000, memory_bytes: 7 << 20 };
        if there { Ok(taken) } else { Err(BackendError::NotFound) }
    }

    async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, BackendError> {
        let known = self.machines().contains_key(id);
        if known { Ok(b"fake console\n".to_vec()) } else { Err(BackendError::NotFound) }
    }

    async fn capture(
        &self,
        id: &SandboxId,
        to: &Sealed,
        then: Then,
    ) -> Result<Captured, BackendError> {
        let guest = self.still(id, true)?;
        if let Err(error) = self.pass(Call::Capture, When::Before).await {
            self.still(id, false)?;
            return Err(error);
        }
        lock(&self.snapshots)
            .entry(to.id.clone())
            .or_insert_with(|| Snapshot { guest: guest.copied(), key: *to.key.expose() });
        if then == Then::Continue {
            self.still(id, false)?;
        }
        self.pass(Call::Capture, When::After).await?;
        Ok(STORED)
    }

    async fn proceed(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.pass(Call::Proceed, When::Before).await?;
        self.still(id, false)?;
        self.pass(Call::Proceed, When::After).await
    }

    async fn loadable(&self, snapshot: &SnapshotId) -> Result<(), BackendError> {
        self.compatible()?;
        let known = lock(&self.snapshots).contains_key(snapshot);
        if known { Ok(()) } else { Err(BackendError::NoSnapshot) }
    }

    async fn forget(&self, snapshot: &SnapshotId) -> Result<(), BackendError> {
        self.pass(Call::Forget, When::Before).await?;
        lock(&self.snapshots).remove(snapshot);
        self.pass(Call::Forget, When::After).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, BackendError> {
        Ok(lock(&self.snapshots).keys().cloned().collect())
    }
}

/// A disk that is locked like that of a real machine.
type Lock = Option<std::fs::File>;

/// Locks a disk's file, where there is one.
fn taken(disk: &Disk) -> Result<Lock, BackendError> {
    let Ok(file) = std::fs::File::open(&disk.file) else { return Ok(None) };
    let taken = file.try_lock();
    taken.map_err(|error| BackendError::failed("attaching the volume", error.to_string()))?;
    Ok(Some(file))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
