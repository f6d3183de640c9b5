//! Volumes of a running sandbox: put in and mounted, let go of and taken out,
//! held still.
//!
//! The backend changes what is in a slot, the guest mounts it. Each step may be
//! repeated, because a server can be killed between any two; whoever asks keeps
//! on record what was begun and asks again. What is in no slot any more is
//! closed by the machine, and only then may another machine have it.

use std::{path::PathBuf, time::Duration};

use domain::id::{SandboxId, VolumeId};
use guest_protocol::{
    control::{Request, Response},
    preface::Preface,
    volumes,
};

pub use guest_protocol::volumes::SLOTS;

use crate::{
    host::{Host, HostError},
    link::{Control, ControlError, Link},
};

/// The account that a volume's top folder belongs to: the ordinary one.
const OWNER: u32 = 1000;
/// How long the guest may take to mount or to let go, a replayed journal and
/// everything that waits to be written included.
const MOUNTING: Duration = Duration::from_secs(75);
/// How long a machine that is to end is given to write what waits to be written.
const FLUSH: Duration = Duration::from_secs(10);
/// How long the guest may take for a short answer beyond what it was given.
const ANSWER: Duration = Duration::from_secs(20);

/// A volume's disk, to be put into a slot of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Whose it is.
    pub volume: VolumeId,
    /// Counted from 0, below [`SLOTS`].
    pub slot: u8,
    /// The file, which is locked for as long as a machine has it.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// Why a volume was not mounted, let go of or held still.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Something in the sandbox uses it.
    #[error("something in the sandbox uses the volume")]
    Busy,
    /// The guest says why not, in words for the sandbox's owner.
    #[error("the sandbox could not do it: {0}")]
    Guest(String),
    /// The sandbox cannot be asked.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Host {
    /// Puts a volume into its slot and mounts it. One that is there already is
    /// no error.
    pub async fn attach(&self, id: &SandboxId, disk: &Disk, path: &str) -> Result<(), VolumeError> {
        self.backend().attach(id, disk).await.map_err(HostError::Backend)?;
        let request = volumes::Request::Mount {
            slot: disk.slot,
            path: path.to_owned(),
            bytes: disk.bytes,
            owner: OWNER,
        };
        self.ask(id, request, MOUNTING).await?;
        self.has_volumes(id);
        Ok(())
    }

    /// Has the guest write what waits to be written, before it is captured.
    pub async fn flush(&self, id: &SandboxId) -> Result<(), VolumeError> {
        self.ask(id, volumes::Request::Sync, FLUSH).await
    }

    /// Ends the mount and takes the volume out of its slot.
    pub async fn detach(&self, id: &SandboxId, slot: u8, path: &str) -> Result<(), VolumeError> {
        let request = volumes::Request::Unmount { slot, path: path.to_owned() };
        self.ask(id, request, MOUNTING).await?;
        self.backend().detach(id, slot).await.map_err(HostError::Backend)?;
        Ok(())
    }

    /// Does `work` while the volume is held still, for at most `limit`.
    ///
    /// # Errors
    /// Also when the work took longer than the limit: what it saw was not still.
    pub async fn while_still<T>(
        &self,
        id: &SandboxId,
        (slot, path): (u8, &str),
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, VolumeError> {
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let freeze = volumes::Request::Freeze { slot, path: path.to_owned(), limit_ms };
        self.ask(id, freeze, limit + ANSWER).await?;
        let done = work.await;
        self.ask(id, volumes::Request::Thaw { slot }, ANSWER).await?;
        Ok(done)
    }

    async fn ask(
        &self,
        id: &SandboxId,
        request: volumes::Request,
        bound: Duration,
    ) -> Result<(), VolumeError> {
        let mut control = Control::over(self.stream(id, Preface::Control).await?);
        match control.call(&Request::Volume(request), bound).await {
            Ok(Response::Done) => Ok(()),
            Ok(Response::Busy) => Err(VolumeError::Busy),
            Ok(Response::Pong { .. } | Response::Failed { .. }) => {
                Err(VolumeError::Guest("it answered another question".to_owned()))
            }
            Err(ControlError::Failed(text)) => Err(VolumeError::Guest(text)),
            Err(ControlError::Lost(error)) => Err(HostError::Unreachable(error).into()),
        }
    }
}

/// Has the guest write what waits to be written, as well as it can: its machine
/// is ended next (S32).
pub(crate) async fn flush_before_the_end(link: &Link) {
    let flushing = async {
        let mut control = link.control().await?;
        let request = Request::Volume(volumes::Request::Sync);
        control.call(&request, FLUSH).await.map_err(std::io::Error::other)
    };
    match tokio::time::timeout(FLUSH, flushing).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "a sandbox did not write what waited"),
        Err(_) => tracing::warn!("a sandbox took too long to write what waited"),
    }
}
