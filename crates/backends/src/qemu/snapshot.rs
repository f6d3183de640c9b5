//! Snapshots of machines: written by a capture, loaded for a start.
//!
//! A loaded snapshot is a sealed file in memory, as a template is, and starts as
//! quickly. It is opened once for all the starts from it, and kept as long as a
//! machine lives that was started from it and for a while after its last start,
//! within a budget ([`budget`]).
//!
//! What must hold:
//!
//! - What is on disk is sealed ([`cipher`]); only the manifest, which says what
//!   the snapshot is bound to ([`bound`]), can be read without the key.
//! - A snapshot is there whole or not at all ([`disk`]).
//! - Nobody starts from a loaded snapshot with another key than its own.
//!
//! Deliberately absent: keys. They come with each call and are kept by nobody
//! here.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use domain::id::SnapshotId;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use sandbox::{
    backend::{BackendError, Captured, Sealed},
    spec::SandboxSpec,
};
use tokio::sync::OwnedMutexGuard;
use tokio_util::task::AbortOnDropHandle;

use super::{
    command::number, filling::Filling, host::Host, memfd, record::Process, stub, template::blocking,
};

mod bound;
mod budget;
mod cipher;
pub(super) mod disk;

pub(super) use bound::Bound;
use budget::Budget;
use cipher::{Cipher, KeyMark};
use disk::Manifest;

/// How long a snapshot stays loaded that nobody uses.
const IDLE: Duration = Duration::from_secs(60);

/// A snapshot in memory.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Sealed once it is filled, and held by every machine that maps it.
    pub(super) memory: Arc<OwnedFd>,
    pub(super) filled: Filling,
    pub(super) state: OwnedFd,
    pub(super) kernel: OwnedFd,
    manifest: Manifest,
    id: SnapshotId,
    mark: KeyMark,
    wanted: Mutex<Instant>,
}

/// The snapshots of this host.
#[derive(Debug)]
pub(super) struct Snapshots {
    folder: PathBuf,
    budget: Arc<Budget>,
    places: Arc<Places>,
    sweeper: OnceLock<AbortOnDropHandle<()>>,
}

/// A place for each snapshot that was wanted. Whoever writes, loads or removes
/// a snapshot holds its place.
#[derive(Debug, Default)]
struct Places {
    places: Mutex<HashMap<SnapshotId, Place>>,
}

type Place = Arc<tokio::sync::Mutex<Option<Arc<Loaded>>>>;

/// The right to write or remove one snapshot.
pub(super) type Turn = OwnedMutexGuard<Option<Arc<Loaded>>>;

impl Loaded {
    pub(super) fn bound(&self) -> &Bound {
        &self.manifest.bound
    }

    pub(super) fn id(&self) -> &SnapshotId {
        &self.id
    }

    /// Whether neither a machine nor a start uses it.
    fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.memory) == 1
    }

    fn idle_for(&self) -> Duration {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Snapshots {
    /// Keeps snapshots in `folder`, and loads at most `limit` bytes of them.
    pub(super) fn open(folder: PathBuf, limit: Option<u64>) -> io::Result<Self> {
        let budget = Arc::new(Budget::open(limit)?);
        Ok(Self { folder, budget, places: Arc::default(), sweeper: OnceLock::new() })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The right to write or remove a snapshot, once nobody else does.
    pub(super) async fn turn(&self, id: &SnapshotId) -> Turn {
        self.places.place(id).lock_owned().await
    }

    /// What a snapshot takes that is there whole.
    pub(super) async fn existing(&self, id: &SnapshotId) -> io::Result<Option<Captured>> {
        let (folder, id) = (self.folder.clone(), id.clone());
        blocking(move || match disk::manifest(&folder, &id)? {
            Some((manifest, _)) => disk::size(&folder, &manifest).map(Some),
            None => Ok(None),
        })
        .await
    }

    /// The snapshot, for a machine of `spec`. Its memory may still be filled
    /// when this returns.
    pub(super) async fn get(
        &self,
        sealed: &Sealed,
        spec: &SandboxSpec,
        host: &Arc<Host>,
    ) -> Result<Arc<Loaded>, BackendError> {
        self.sweeper.get_or_init(|| {
            AbortOnDropHandle::new(tokio::spawn(sweep(Arc::downgrade(&self.places))))
        });
        let mut place = self.turn(&sealed.id).await;
        if let Some(loaded) = &*place
            && !loaded.filled.has_failed()
        {
            usable(loaded, sealed, spec, host)?;
            *loaded.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            return Ok(Arc::clone(loaded));
        }
        let (folder, budget) = (self.folder.clone(), Arc::clone(&self.budget));
        let (places, host) = (Arc::clone(&self.places), Arc::clone(host));
        let (sealed, spec) = (sealed.clone(), spec.clone());
        let loading = move || {
            let loaded = Arc::new(load(&folder, &budget, &places, &sealed, &spec, &host)?);
            *place = Some(Arc::clone(&loaded));
            Ok(loaded)
        };
        let loading = tokio::task::spawn_blocking(loading).await;
        loading.map_err(|source| BackendError::failed("loading the snapshot", source))?
    }

    /// Whether a snapshot can be loaded on this host.
    pub(super) async fn loadable(
        &self,
        id: &SnapshotId,
        host: &Arc<Host>,
    ) -> Result<(), BackendError> {
        let (folder, id) = (self.folder.clone(), id.clone());
        let manifest = blocking(move || disk::manifest(&folder, &id)).await.map_err(reading)?;
        let (manifest, _) = manifest.ok_or(BackendError::NoSnapshot)?;
        match manifest.bound.host_mismatch(host) {
            Some(sentence) => Err(BackendError::Incompatible(sentence)),
            None => Ok(()),
        }
    }

    /// Removes a snapshot. Machines that were started from it run on.
    pub(super) async fn forget(&self, id: &SnapshotId) -> io::Result<()> {
        let mut place = self.turn(id).await;
        let (folder, id) = (self.folder.clone(), id.clone());
        let places = Arc::clone(&self.places);
        blocking(move || {
            *place = None;
            disk::forget(&folder, &id)?;
            places.lock().remove(&id);
            Ok(())
        })
        .await
    }

    /// The snapshots that exist, whole or not.
    pub(super) async fn list(&self) -> io::Result<Vec<SnapshotId>> {
        let folder = self.folder.clone();
        blocking(move || disk::list(&folder)).await
    }

    /// Counts what a machine takes that an earlier server started from a
    /// snapshot. The result is to be held as long as the machine lives.
    pub(super) fn count(&self, process: &Process) -> Option<Arc<OwnedFd>> {
        let handle = process.open()?;
        let file = pidfd_getfd(&handle, number::MEMORY, PidfdGetfdFlags::empty()).ok()?;
        let file = Arc::new(file);
        self.budget.count(&file);
        Some(file)
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, HashMap<SnapshotId, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, id: &SnapshotId) -> Place {
        Arc::clone(self.lock().entry(id.clone()).or_default())
    }

    /// Lets go of what nobody uses and nobody wanted for `idle`.
    fn drop_unused(&self, idle: Duration) {
        self.lock().retain(|_, place| {
            // A place that somebody holds is in use, and so is its owner's copy.
            let Ok(mut loaded) = place.try_lock() else { return true };
            let keep = loaded
                .as_ref()
                .is_some_and(|loaded| !loaded.is_unused() || loaded.idle_for() < idle);
            if !keep {
                *loaded = None;
            }
            drop(loaded);
            keep || Arc::strong_count(place) > 1
        });
    }
}

/// Lets go of unused snapshots for as long as there are any places.
async fn sweep(places: Weak<Places>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        match places.upgrade() {
            Some(places) => places.drop_unused(IDLE),
            None => return,
        }
    }
}

/// Whether a loaded snapshot may be used for this start.
fn usable(
    loaded: &Loaded,
    sealed: &Sealed,
    spec: &SandboxSpec,
    host: &Host,
) -> Result<(), BackendError> {
    if let Some(sentence) = loaded.bound().mismatch(spec, host) {
        return Err(BackendError::Incompatible(sentence));
    }
    let cipher = Cipher::new(&sealed.key, &loaded.manifest.salt, sealed.id.as_str());
    match cipher {
        Ok(cipher) if cipher.mark() == loaded.mark => Ok(()),
        _ => Err(reading(io::Error::other("its key is another one"))),
    }
}

fn load(
    folder: &Path,
    budget: &Arc<Budget>,
    places: &Places,
    sealed: &Sealed,
    spec: &SandboxSpec,
    host: &Host,
) -> Result<Loaded, BackendError> {
    let found = disk::manifest(folder, &sealed.id).map_err(reading)?;
    let (manifest, text) = found.ok_or(BackendError::NoSnapshot)?;
    if let Some(sentence) = manifest.bound.mismatch(spec, host) {
        return Err(BackendError::Incompatible(sentence));
    }
    let promise = match budget.promise(manifest.used_bytes) {
        Ok(promise) => promise,
        Err(_) => {
            // What nobody uses makes room before its time.
            places.drop_unused(Duration::ZERO);
            budget.promise(manifest.used_bytes).map_err(BackendError::Refused)?
        }
    };
    let cipher = Cipher::new(&sealed.key, &manifest.salt, sealed.id.as_str());
    let mark = cipher.map_err(|_| reading(io::Error::other("the cipher failed")))?.mark();
    let found = disk::open(folder, &sealed.key, &manifest, &text).map_err(reading)?;
    let disk::Found { memory, devices, fill } = found;
    budget.count(&memory);
    let kernel = stub::of(&spec.image.kernel).map_err(reading)?;
    let filled = Filling::begin(move || {
        let result = fill.run();
        // From now on the file counts itself.
        drop(promise);
        result
    });
    Ok(Loaded {
        memory,
        filled,
        state: memfd::sealed("coldframe-state", &[&devices]).map_err(reading)?,
        kernel: memfd::sealed("coldframe-kernel", &[&kernel]).map_err(reading)?,
        manifest,
        id: sealed.id.clone(),
        mark,
        wanted: Mutex::new(Instant::now()),
    })
}

fn reading(source: io::Error) -> BackendError {
    BackendError::failed("loading the snapshot", source)
}

#[cfg(test)]
mod tests;
