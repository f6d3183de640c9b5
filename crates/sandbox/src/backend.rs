//! The contract of a place where sandboxes run.
//!
//! A backend reports facts and holds no policy. It does not retry and does not
//! decide whether an operation is allowed now: the driver does both, and bounds
//! every wait. `testkit::contract` states the sentences below as tests, and
//! every implementation runs them.

use std::fmt;

use async_trait::async_trait;
use domain::{
    id::{SandboxId, SnapshotId},
    isolation::IsolationClass,
    snapshot::SnapshotKey,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    gauge::{Room, Taken},
    spec::SandboxSpec,
    volumes::Disk,
};

/// A byte pipe to a guest.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// This host cannot run such a sandbox, and asking again will not help.
    #[error("{0}")]
    Refused(String),
    /// There is no such sandbox here.
    #[error("the sandbox does not exist on this host")]
    NotFound,
    /// This backend has no such ability, such as capturing memory.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The snapshot cannot be loaded here: what it is bound to has changed. The
    /// sentence says what, and what to do.
    #[error("{0}")]
    Incompatible(String),
    /// There is no such snapshot here, or it is not whole.
    #[error("the snapshot does not exist on this host")]
    NoSnapshot,
    /// A step failed. Nothing is left behind.
    #[error("{step} failed")]
    Failed {
        /// What was being done, such as `starting the virtual machine`.
        step: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl BackendError {
    /// Wraps the cause of a failed step.
    pub fn failed(
        step: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed { step, source: source.into() }
    }
}

/// A snapshot of kind `full` and the key that opens it.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Names it on this host.
    pub id: SnapshotId,
    /// Opens it.
    pub key: SnapshotKey,
}

/// What becomes of a machine once it is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    Continue,
    /// It stays stopped, so that nothing happens which the snapshot lacks.
    Hold,
}

/// What a capture came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// What it takes on disk.
    pub stored_bytes: u64,
    /// How much of the memory is in it.
    pub memory_bytes: u64,
}

/// Where sandboxes run.
///
/// Every method is idempotent, because the driver repeats a call whose answer
/// was lost: `create` twice with one id makes one sandbox, `destroy` of an
/// absent one succeeds. All sandboxes a backend made outlive the process that
/// asked for them, unless the backend was built to end them with it.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync {
    /// The name used in configuration and logs, such as `qemu`.
    fn name(&self) -> &'static str;

    /// How strongly its sandboxes are separated. Never changes while running.
    fn isolation(&self) -> IsolationClass;

    /// Makes what all sandboxes of this spec share, so that `create` is quick.
    ///
    /// `create` calls it when needed; calling it before only moves the wait.
    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), BackendError>;

    /// Makes the sandbox. Its guest is up or about to be; [`Backend::connect`]
    /// reaches it.
    ///
    /// On error, nothing is left behind. When this future is dropped, what
    /// exists so far is listed by [`Backend::list`] and removed by
    /// [`Backend::destroy`].
    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), BackendError>;

    /// Opens the byte pipe to the guest, at once or not at all.
    ///
    /// There is one at a time: a new one takes the place of the last. The pipe
    /// has no connections of its own, so bytes of an earlier use may still
    /// arrive; framing deals with that.
    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, BackendError>;

    /// Waits until the machine is gone and says what is known about why, in one
    /// sentence without host paths.
    ///
    /// For a sandbox that does not exist it returns at once.
    async fn wait(&self, id: &SandboxId) -> String;

    /// Removes the sandbox and everything made for it.
    async fn destroy(&self, id: &SandboxId) -> Result<(), BackendError>;

    /// Lists what exists, whole or half-made, whoever made it.
    async fn list(&self) -> Result<Vec<SandboxId>, BackendError>;

    /// What the host has and has left.
    async fn room(&self) -> Result<Room, BackendError> {
        Ok(Room::UNBOUNDED)
    }

    /// What a sandbox takes of the host.
    async fn taken(&self, _id: &SandboxId) -> Result<Taken, BackendError> {
        Err(BackendError::Unsupported("this backend cannot measure a machine"))
    }

    /// The last output of the machine's console, bounded by the backend.
    async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, BackendError>;

    /// Puts a disk into its slot, so that the guest sees its size. A disk that is
    /// in there already is no error; a slot that holds another one is.
    ///
    /// The file is locked for as long as the machine holds it, so no two
    /// machines ever have one disk.
    async fn attach(&self, _id: &SandboxId, _disk: &Disk) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("this backend has no slots for volumes"))
    }

    /// Takes out what a slot holds. An empty slot is no error.
    async fn detach(&self, _id: &SandboxId, _slot: u8) -> Result<(), BackendError> {
        Ok(())
    }

    /// Stops the machine and writes its memory and devices into a snapshot.
    ///
    /// On success the snapshot is whole and would survive a crash of the host.
    /// On error there is none, and the machine goes on as before. A snapshot
    /// that exists whole is not written again.
    async fn capture(
        &self,
        _id: &SandboxId,
        _to: &Sealed,
        _then: Then,
    ) -> Result<Captured, BackendError> {
        Err(BackendError::Unsupported("this backend cannot capture a machine's memory"))
    }

    /// Lets a machine go on that stands still. One that runs is left as it is.
    async fn proceed(&self, _id: &SandboxId) -> Result<(), BackendError> {
        Ok(())
    }

    /// Says whether a sandbox can be started from the snapshot on this host, as
    /// it is now, without starting one.
    async fn loadable(&self, _snapshot: &SnapshotId) -> Result<(), BackendError> {
        Err(BackendError::NoSnapshot)
    }

    /// Removes a snapshot, whole or half-made. An absent one is no error, and
    /// machines that were started from it run on.
    async fn forget(&self, _snapshot: &SnapshotId) -> Result<(), BackendError> {
        Ok(())
    }

    /// Lists the snapshots that exist, whole or half-made.
    async fn snapshots(&self) -> Result<Vec<SnapshotId>, BackendError> {
        Ok(Vec::new())
    }
}
