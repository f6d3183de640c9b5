//! Sandboxes as virtual machines under QEMU.
//!
//! ```text
//!  image ──boot once──► template (sealed memory + device state)
//!                           │ mapped privately, state loaded
//!            ┌──────────────┼──────────────┐
//!         machine        machine        machine     one per sandbox: own user,
//!            │                                      namespaces, cgroup, jail
//!            └──capture──► snapshot ──load──► sealed memory ──► machines
//! ```
//!
//! [`QemuBackend`] keeps one folder for each sandbox and can do everything from
//! it, so a restart of the server loses nothing: [`record`] says how a machine is
//! found again. One lock for each sandbox orders what is done to it; the lock is
//! held by the work itself, also when the caller stops waiting.
//!
//! What must hold:
//!
//! - No machine has a network device or sees a path of the host ([`command`]).
//! - No machine runs unconfined, not even for a moment ([`jail`]).
//! - No machine can change what another one starts from ([`memfd`]).
//! - What exists has a folder; a folder goes last.

use std::{
    collections::HashMap,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use domain::{
    id::{SandboxId, SnapshotId},
    image::digest::Digest,
    isolation::IsolationClass,
};
use sandbox::{
    backend::{Backend, BackendError, Captured, Pipe, Sealed, Then},
    gauge::{Room, Taken},
    spec::{SandboxSpec, Source},
    volumes::Disk,
};
use tokio::sync::OwnedMutexGuard;
use tracing::info;

mod build;
mod capture;
mod cgroup;
mod clock;
mod clone;
mod command;
mod console;
mod cpio;
mod filling;
mod gauge;
mod host;
pub mod jail;
mod launch;
mod link;
mod machine;
mod memfd;
mod memory;
mod original;
mod pidfd;
pub mod probe;
mod qmp;
mod record;
mod snapshot;
mod stub;
mod template;
mod uids;
mod volumes;

pub use command::Accelerator;
pub use jail::order::Lifetime;

use host::Host;
use machine::{Found, Machine};
use original::Original;
use probe::{Places, Probe, Verdict};
use record::Folder;
use snapshot::Snapshots;
use template::{Template, Templates, blocking, boot::Boot};
use uids::Uids;

/// Where the users of live machines are locked, for all of the host.
const UIDS: &str = "/run/coldframe/uids";
/// How long a machine may take to go.
const REMOVAL: Duration = Duration::from_secs(15);

/// How machines are made.
#[derive(Clone)]
pub struct QemuConfig {
    /// The program, such as `/usr/bin/qemu-system-x86_64`.
    pub qemu: PathBuf,
    /// Folder for jails and templates, which every process of this host shares.
    pub state_dir: PathBuf,
    /// Folder for running machines. It belongs to one process at a time: what it
    /// holds, that process lists and may remove.
    pub run_dir: PathBuf,
    /// Folder for snapshots. It belongs to one process at a time, as `run_dir`.
    pub snapshot_dir: PathBuf,
    /// The most memory that loaded snapshots may take, in bytes. None for a
    /// quarter of the host's.
    pub snapshot_memory: Option<u64>,
    /// The program that runs [`jail::main`] when its argument is `jail`.
    pub jailer: PathBuf,
    /// The guest's init, which every machine boots into.
    pub guestd: Arc<[u8]>,
    /// First of the users that machines run as.
    pub uid_base: u32,
    /// Whether machines outlive this process.
    pub lifetime: Lifetime,
}

/// Why machines cannot be made here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The host lacks something; the text says what, and what to do.
    #[error("{subject}: {found}; {remedy}")]
    Unusable {
        /// What was looked at.
        subject: &'static str,
        /// What was found.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// The state folder cannot be used.
    #[error("the state folder cannot be used")]
    State(#[from] io::Error),
}

/// Makes virtual machines.
pub struct QemuBackend {
    host: Arc<Host>,
    templates: Templates,
    snapshots: Arc<Snapshots>,
    run: PathBuf,
    lifetime: Lifetime,
    slots: Mutex<HashMap<SandboxId, Slot>>,
}

/// Why a machine was not made.
struct Unmade {
    error: BackendError,
    /// Whether a fresh template would help.
    damaged_template: bool,
}

impl From<BackendError> for Unmade {
    fn from(error: BackendError) -> Self {
        Self { error, damaged_template: false }
    }
}

/// What this process knows about one sandbox.
#[derive(Clone, Default)]
struct Slot {
    /// Held by whoever changes the sandbox.
    gate: Arc<tokio::sync::Mutex<()>>,
    machine: Arc<Mutex<Option<Arc<Machine>>>>,
}

impl fmt::Debug for QemuConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QemuConfig")
            .field("qemu", &self.qemu)
            .field("state_dir", &self.state_dir)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for QemuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QemuBackend")
            .field("accelerator", &self.host.accelerator)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

/// Looks at this host, check by check. Blocks for up to some seconds.
pub fn probe(config: &QemuConfig) -> Result<Probe, OpenError> {
    std::fs::create_dir_all(&config.state_dir)?;
    let uids = Uids::open(UIDS.into(), config.uid_base)?;
    Ok(probe::probe(&places(config, &uids)))
}

fn places<'a>(config: &'a QemuConfig, uids: &'a Uids) -> Places<'a> {
    Places { qemu: &config.qemu, jailer: &config.jailer, state: &config.state_dir, uids }
}

impl QemuBackend {
    /// Opens the state folder. Blocks for up to some seconds when this host was
    /// not looked at since it started, and for a millisecond otherwise.
    pub fn open(config: QemuConfig) -> Result<Self, OpenError> {
        let state = &config.state_dir;
        std::fs::create_dir_all(state)?;
        std::fs::create_dir_all(&config.run_dir)?;
        let uids = Uids::open(UIDS.into(), config.uid_base)?;
        if config.lifetime == Lifetime::Outlives {
            // A server has the time; a single run has not.
            uids.sweep();
        }
        let known = probe::remembered(state).filter(|_| probe::is_root());
        let findings = match known {
            Some(findings) => findings,
            None => usable(probe::probe(&places(&config, &uids)))?,
        };
        let hierarchy = probe::hierarchy()?;
        let host = Host {
            launcher: launch::Launcher::new(config.jailer, findings.build)?,
            hierarchy,
            uids,
            accelerator: findings.accelerator,
            tsc_khz: findings.tsc_khz,
            processor: host::processor(findings.accelerator)?,
            guest_digest: Digest::of(&config.guestd),
            guest: config.guestd,
        };
        Ok(Self {
            host: Arc::new(host),
            templates: Templates::open(state.join("templates"))?,
            snapshots: Arc::new(Snapshots::open(config.snapshot_dir, config.snapshot_memory)?),
            run: config.run_dir,
            lifetime: config.lifetime,
            slots: Mutex::default(),
        })
    }

    /// How machines run here.
    pub fn accelerator(&self) -> Accelerator {
        self.host.accelerator
    }

    /// Whether the template for `spec` is there and fits this host, so that a
    /// start need not boot one first.
    pub async fn has_template(&self, spec: &SandboxSpec) -> bool {
        self.templates.has(self.key(spec), self.host.tsc_khz).await
    }

    fn key(&self, spec: &SandboxSpec) -> Digest {
        let qemu = self.host.launcher.build().digest;
        template::key(spec, self.host.accelerator, qemu, self.host.guest_digest)
    }

    async fn template(&self, spec: &SandboxSpec) -> Result<Arc<Template>, BackendError> {
        let boot = Boot { host: &self.host, tsc_khz: self.host.tsc_khz };
        self.templates.get(self.key(spec), spec, &boot).await
    }

    /// What a machine of `spec` continues from, ready in memory.
    async fn original(&self, spec: &SandboxSpec) -> Result<Original, BackendError> {
        Ok(match &spec.source {
            Source::Template => Original::Template(self.template(spec).await?),
            Source::Snapshot(sealed) => {
                Original::Snapshot(self.snapshots.get(sealed, spec, &self.host).await?)
            }
        })
    }

    async fn start(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), Unmade> {
        let begun = Instant::now();
        host::room(&spec.resources)?;
        let original = self.original(spec).await?;
        let original_us = micros(begun);

        let slot = self.slot(id);
        let gate = Arc::new(Arc::clone(&slot.gate).lock_owned().await);
        let site = self.site(id);
        if site.folder.exists() {
            let record = site.folder.read();
            if record.complete && record.process.is_some_and(|process| process.open().is_some()) {
                return Ok(());
            }
            remove(site.clone(), Arc::clone(&gate)).await?;
        }
        let (spec, lifetime) = (spec.clone(), self.lifetime);
        let order = clone::Order { original: original.clone(), spec, lifetime };
        match clone::start(site.clone(), order, Arc::clone(&gate)).await {
            Ok((machine, steps)) => {
                let mut place = slot.machine.lock().unwrap_or_else(PoisonError::into_inner);
                *place = Some(Arc::new(machine));
                info!(
                    sandbox.id = %id,
                    original_us,
                    spawn_us = steps.spawn_us,
                    qmp_us = steps.qmp_us,
                    fill_us = steps.fill_us,
                    load_us = steps.load_us,
                    total_us = micros(begun),
                    "created the machine of sandbox {id}",
                );
                Ok(())
            }
            Err(error) => {
                remove(site, gate).await?;
                self.drop_slot(id);
                let damaged_template =
                    matches!(original, Original::Template(_)) && original.filled().has_failed();
                Err(Unmade { error, damaged_template })
            }
        }
    }

    fn slot(&self, id: &SandboxId) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry(id.clone()).or_default().clone()
    }

    fn drop_slot(&self, id: &SandboxId) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(id);
    }

    fn site(&self, id: &SandboxId) -> Site {
        Site {
            host: Arc::clone(&self.host),
            folder: Folder::of(&self.run, id),
            group: self.host.hierarchy.group(id.as_str()),
        }
    }

    /// The machine of a sandbox, watched from now on if it was not before.
    async fn machine(&self, id: &SandboxId) -> Result<Arc<Machine>, BackendError> {
        let known =
            |slot: &Slot| slot.machine.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let site = self.site(id);
        if !site.folder.exists() {
            return Err(BackendError::NotFound);
        }
        let slot = self.slot(id);
        if let Some(machine) = known(&slot) {
            return Ok(machine);
        }
        let _gate = slot.gate.lock().await;
        if let Some(machine) = known(&slot) {
            return Ok(machine);
        }
        let record = site.folder.read();
        let process = record.process.filter(|_| record.complete).ok_or(BackendError::NotFound)?;
        let handle = process.open().ok_or(BackendError::NotFound)?;
        let basis = record.snapshot.and_then(|_| self.snapshots.count(&process));
        let Site { folder, group, .. } = site;
        let found = Found { folder, group, process: handle, fresh: None, basis };
        let machine = Machine::watch(found)
            .map_err(|source| BackendError::failed("watching the machine", source))?;
        let machine = Arc::new(machine);
        let mut place = slot.machine.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::clone(&machine));
        Ok(machine)
    }
}

/// The first thing that is missing, or what was found.
fn usable(probe: Probe) -> Result<probe::Findings, OpenError> {
    let missing = probe.checks.into_iter().find(|check| check.verdict == Verdict::Missing);
    if let Some(check) = missing {
        return Err(OpenError::Unusable {
            subject: check.subject,
            found: check.found,
            remedy: check.remedy.unwrap_or_default(),
        });
    }
    probe.findings.ok_or_else(|| io::Error::other("the host could not be looked at").into())
}

/// Everything a sandbox takes on this host.
#[derive(Clone, Debug)]
struct Site {
    host: Arc<Host>,
    folder: Folder,
    group: cgroup::Group,
}

impl Site {
    /// Removes all of it, whatever there is. Blocks.
    fn remove(&self) -> Result<(), BackendError> {
        let failed = |source: io::Error| BackendError::failed("removing the sandbox", source);
        let deadline = Instant::now() + REMOVAL;
        let record = self.folder.read();
        let process = record.process.and_then(|process| process.open());
        let left = self.group.kill(deadline);
        if !left.is_empty() {
            // It keeps its folder, so it stays listed, and its user stays taken.
            let text = format!("these processes do not end: {left:?}");
            return Err(failed(io::Error::other(text)));
        }
        if let Some(process) = process {
            // It has left its group and may need a moment for the rest.
            pidfd::wait(&process, deadline.saturating_duration_since(Instant::now()))
                .map_err(failed)?;
            pidfd::take_status(&process);
        }
        self.group.remove(deadline).map_err(failed)?;
        match record.uid {
            Some(uid) => self.host.uids.release(uid),
            // It had none, or its maker was killed before it could write it down.
            None => self.host.uids.sweep(),
        }
        // Last: without it nobody would come back for what is left.
        self.folder.remove().map_err(failed)
    }
}

#[async_trait]
impl Backend for QemuBackend {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn isolation(&self) -> IsolationClass {
        IsolationClass::Microvm
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), BackendError> {
        host::room(&spec.resources)?;
        self.original(spec).await.map(drop)
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), BackendError> {
        let first = self.start(id, spec).await;
        match first {
            // A template that is damaged is made anew, once.
            Err(Unmade { damaged_template: true, .. }) => self.start(id, spec).await,
            other => other,
        }
        .map_err(|unmade| unmade.error)
    }

    async fn attach(&self, id: &SandboxId, disk: &Disk) -> Result<(), BackendError> {
        let machine = self.machine(id).await?;
        let _alone = machine.alone().await;
        Ok(volumes::attach(&mut &*machine, &self.site(id).group, disk).await?)
    }

    async fn detach(&self, id: &SandboxId, slot: u8) -> Result<(), BackendError> {
        let machine = self.machine(id).await?;
        let _alone = machine.alone().await;
        Ok(volumes::empty(&mut &*machine, slot).await?)
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, BackendError> {
        let machine = self.machine(id).await?;
        let pipe = machine.connect().await;
        let pipe =
            pipe.map_err(|source| BackendError::failed("connecting to the guest", source))?;
        Ok(Box::new(pipe))
    }

    async fn wait(&self, id: &SandboxId) -> String {
        match self.machine(id).await {
            Ok(machine) => machine.ended().await,
            Err(_) => "the machine is gone; nobody saw it end".to_owned(),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), BackendError> {
        let slot = self.slot(id);
        let gate = Arc::new(Arc::clone(&slot.gate).lock_owned().await);
        remove(self.site(id), gate).await?;
        slot.machine.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.drop_slot(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>, BackendError> {
        let run = self.run.clone();
        let listing = blocking(move || Folder::list(&run)).await;
        listing.map_err(|source| BackendError::failed("listing sandboxes", source))
    }

    async fn room(&self) -> Result<Room, BackendError> {
        let run = self.run.clone();
        let room = blocking(move || gauge::room(&run)).await;
        room.map_err(|source| BackendError::failed("measuring the host", source))
    }

    async fn taken(&self, id: &SandboxId) -> Result<Taken, BackendError> {
        let site = self.site(id);
        let taken = blocking(move || {
            let process = site.folder.read().process;
            Ok(process.and_then(|process| gauge::taken(&site.group, &process)))
        });
        let failed = |source| BackendError::failed("measuring the machine", source);
        taken.await.map_err(failed)?.ok_or(BackendError::NotFound)
    }

    async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, BackendError> {
        Ok(self.machine(id).await?.console().await)
    }

    async fn capture(
        &self,
        id: &SandboxId,
        to: &Sealed,
        then: Then,
    ) -> Result<Captured, BackendError> {
        if self.lifetime == Lifetime::EndsWithCaller {
            return Err(BackendError::Unsupported(
                "a machine that ends with its maker cannot be captured; use a server",
            ));
        }
        let machine = self.machine(id).await?;
        let gate = self.slot(id).gate.lock_owned().await;
        let order = capture::Order::new(machine, self.site(id).folder.read(), to, then)?;
        let snapshots = Arc::clone(&self.snapshots);
        // Not left half-way when nobody waits any more: the machine stands still.
        let capturing = tokio::spawn(async move {
            let _gate = gate;
            order.run(&snapshots).await
        });
        capturing.await.map_err(|source| BackendError::failed("capturing the machine", source))?
    }

    async fn proceed(&self, id: &SandboxId) -> Result<(), BackendError> {
        let machine = self.machine(id).await?;
        let _gate = self.slot(id).gate.lock_owned().await;
        let proceeded = machine.proceed().await;
        proceeded.map_err(|source| BackendError::failed("letting the machine go on", source))
    }

    async fn loadable(&self, snapshot: &SnapshotId) -> Result<(), BackendError> {
        self.snapshots.loadable(snapshot, &self.host).await
    }

    async fn forget(&self, snapshot: &SnapshotId) -> Result<(), BackendError> {
        let forgotten = self.snapshots.forget(snapshot).await;
        forgotten.map_err(|source| BackendError::failed("removing the snapshot", source))
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, BackendError> {
        let listing = self.snapshots.list().await;
        listing.map_err(|source| BackendError::failed("listing snapshots", source))
    }
}

/// Removes a sandbox. The gate is held until that is done, also if nobody waits.
async fn remove(site: Site, gate: Arc<OwnedMutexGuard<()>>) -> Result<(), BackendError> {
    let removal = tokio::task::spawn_blocking(move || {
        let _gate = gate;
        site.remove()
    });
    removal.await.map_err(|source| BackendError::failed("removing the sandbox", source))?
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
