//! Giving a volume to a sandbox, and taking it back.
//!
//! ```text
//!  row `attaching` + line ──► machine gets the disk, guest mounts ──► `attached`
//!  row `detaching` + line ──► guest lets go, machine loses the disk ──► no row
//! ```
//!
//! The row is the lease. It outlives a pause, and it ends with the sandbox, whose
//! end is recorded when its machine is gone. A sandbox that ends by itself lets
//! go without a word: the file's own lock then says when it is free.

use std::collections::HashSet;

use domain::{
    caller::Caller,
    ending::{Cause, Ending},
    id::SandboxId,
    phase::Phase,
    volume::{AttachmentState, MountPath, VolumeRef},
};
use sandbox::{
    host::HostError,
    volumes::{Disk, SLOTS, VolumeError},
};
use store::volumes::{Attached, Attachment, Volume};

use crate::{
    Control,
    authority::Action,
    control::{Detail, detail},
    error::{ConflictCode, Error},
    sandboxes::{from_host, running},
    volumes::{PATIENCE, object},
};

/// A volume and where a sandbox wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMount {
    /// Which.
    pub volume: VolumeRef,
    /// Where.
    pub path: MountPath,
}

/// A volume that a sandbox has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// The lease.
    pub attachment: Attachment,
    /// What is on record of the volume.
    pub volume: Volume,
}

impl Control {
    /// Attaches a volume to a running sandbox and returns when it is mounted.
    pub async fn attach_volume(
        &self,
        caller: &Caller,
        id: &SandboxId,
        mount: NewMount,
    ) -> Result<MountedVolume, Error> {
        let action = Action::VolumeAttach;
        let told = describe(&mount);
        let judged = self.judge_attach(caller, id, &mount).await;
        let (line, volume) = match judged {
            Ok((permit, volume)) => {
                (self.allowed(caller, permit, Some(id.as_str()), told.clone()), volume)
            }
            Err(error) => {
                return Err(self.refuse(caller, action, Some(id.as_str()), told, error).await);
            }
        };
        let lease = (&volume.id, id);
        let now = self.now();
        let asked = self.store().attach_volume(lease, &mount.path, SLOTS, now, &line).await?;
        let attachment = match asked {
            Attached::New(attachment) => attachment,
            Attached::Before(attachment) => {
                self.store().append_audit(&line).await?;
                return Ok(MountedVolume { attachment, volume });
            }
            asked => {
                let error = refusal(asked);
                return Err(self.refuse(caller, action, Some(id.as_str()), told, error).await);
            }
        };
        let control = self.clone();
        let row = volume.clone();
        let attaching =
            self.tasks().spawn(async move { control.finish_attach(&row, attachment).await });
        match tokio::time::timeout(PATIENCE * 2, attaching).await {
            Ok(Ok(attached)) => Ok(MountedVolume { attachment: attached?, volume }),
            Ok(Err(error)) => Err(Error::Internal { source: Box::new(error) }),
            Err(_) => Err(Error::Unavailable {
                detail: "the volume is still being attached; look at the sandbox",
                source: None,
            }),
        }
    }

    /// Takes a volume out of a running sandbox, after everything was written.
    /// One that it does not have is no error.
    pub async fn detach_volume(
        &self,
        caller: &Caller,
        id: &SandboxId,
        which: &VolumeRef,
    ) -> Result<(), Error> {
        let action = Action::VolumeDetach;
        let told = || detail([("volume", object(which).into())]);
        let sandbox = self.judge_sandbox(caller, action, id).await;
        let judged = match sandbox {
            Ok((permit, row)) => {
                let volume = self.judge_volume(caller, action, which).await;
                volume.map(|(_, volume)| (permit, row, volume))
            }
            Err(error) => Err(error),
        };
        let (permit, row, volume) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                return Err(self.refuse(caller, action, Some(id.as_str()), told(), error).await);
            }
        };
        let line = self.allowed(caller, permit, Some(id.as_str()), told());
        let attachment = self.store().attachment(&volume.id).await?;
        let Some(attachment) = attachment.filter(|attachment| attachment.sandbox == *id) else {
            return Ok(self.store().append_audit(&line).await?);
        };
        if let Err(error) = running(row) {
            return Err(self.refuse(caller, action, Some(id.as_str()), told(), error).await);
        }
        let moved = self
            .store()
            .move_attachment(&volume.id, id, AttachmentState::Detaching, Some(&line))
            .await?;
        if moved == store::sandboxes::Moved::No {
            return Ok(());
        }
        let control = self.clone();
        let detaching = self.tasks().spawn(async move { control.finish_detach(&attachment).await });
        match tokio::time::timeout(PATIENCE * 2, detaching).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(Error::Internal { source: Box::new(error) }),
            Err(_) => Err(Error::Unavailable {
                detail: "the volume is still being detached; ask again",
                source: None,
            }),
        }
    }

    /// The volumes that a sandbox has, for whoever may see the sandbox.
    pub async fn mounted_volumes(&self, id: &SandboxId) -> Result<Vec<MountedVolume>, Error> {
        let mut mounted = Vec::new();
        for attachment in self.store().attachments_of(id).await? {
            if let Some(volume) = self.store().volume(&attachment.volume).await? {
                mounted.push(MountedVolume { attachment, volume });
            }
        }
        Ok(mounted)
    }

    /// What the slots of a paused sandbox's machine held, for its resume.
    pub(crate) async fn disks_of(&self, id: &SandboxId) -> Result<Vec<Disk>, Error> {
        let mounted = self.mounted_volumes(id).await?;
        if mounted.is_empty() {
            return Ok(Vec::new());
        }
        let disks = &self.volumes()?.disks;
        let disk = |mounted: &MountedVolume| Disk {
            volume: mounted.volume.id.clone(),
            slot: mounted.attachment.slot,
            file: disks.path(&mounted.volume.id),
            bytes: mounted.volume.size.bytes(),
        };
        Ok(mounted.iter().map(disk).collect())
    }

    /// Refuses to copy a sandbox that has a volume: two machines would write
    /// into one disk (U37).
    pub(crate) async fn refuse_with_volumes(&self, id: &SandboxId) -> Result<(), Error> {
        match self.store().attachments_of(id).await?.first() {
            None => Ok(()),
            Some(_) => Err(Error::Conflict {
                code: ConflictCode::VolumeAttached,
                detail: "the sandbox has a volume; detach it first".to_owned(),
            }),
        }
    }

    /// Refuses to pause a sandbox whose volume is just being attached or
    /// detached: what its memory says would not be what its slots hold.
    pub(crate) async fn refuse_with_moving_volumes(&self, id: &SandboxId) -> Result<(), Error> {
        let moving = self.store().attachments_of(id).await?;
        match moving.iter().find(|lease| lease.state != AttachmentState::Attached) {
            None => Ok(()),
            Some(lease) => Err(Error::Conflict {
                code: ConflictCode::VolumeBusy,
                detail: format!("volume {} is {}; try again", lease.volume, lease.state.as_str()),
            }),
        }
    }

    /// Has what waits to be written to volumes written, before their sandbox is
    /// captured: what is in its memory only would be lost if it never resumed.
    pub(crate) async fn flush_volumes(&self, id: &SandboxId) -> Result<(), Error> {
        if !self.store().attachments_of(id).await?.is_empty()
            && let Err(error) = self.host().flush(id).await
        {
            tracing::warn!(sandbox.id = %id, %error, "a sandbox did not write what waited");
        }
        Ok(())
    }

    /// Judges the volumes that a new sandbox is to have.
    pub(crate) async fn judge_mounts(
        &self,
        caller: &Caller,
        mounts: &[NewMount],
        repeatable: bool,
    ) -> Result<(), Error> {
        if mounts.len() > usize::from(SLOTS) {
            let most = format!("a sandbox has at most {SLOTS} volumes");
            return Err(Error::invalid("volumes", most));
        }
        let mut seen = HashSet::new();
        for (index, mount) in mounts.iter().enumerate() {
            self.volumes()?;
            let (_, volume) =
                self.judge_volume(caller, Action::VolumeAttach, &mount.volume).await?;
            if !seen.insert(volume.id.clone()) {
                return Err(Error::invalid("volumes", "a volume is named twice"));
            }
            let before = &mounts[..index];
            if before.iter().any(|other| other.path.overlaps(&mount.path)) {
                let text = format!("two volumes would be at {}", mount.path);
                return Err(Error::invalid("volumes", text));
            }
            if volume.state != domain::volume::KeptState::Ready {
                return Err(refusal(Attached::NotReady));
            }
            // The sandbox of the same request's first attempt may have it.
            if !repeatable && let Some(lease) = self.store().attachment(&volume.id).await? {
                return Err(taken(&lease));
            }
        }
        Ok(())
    }

    /// Attaches the volumes that a sandbox was asked for with. Without one of them
    /// it is not what was asked for, and ends.
    pub(crate) async fn attach_first(
        &self,
        caller: &Caller,
        id: &SandboxId,
        mounts: Vec<NewMount>,
    ) {
        for mount in mounts {
            let named = object(&mount.volume);
            let Err(error) = self.attach_volume(caller, id, mount).await else { continue };
            let why = format!("volume {named} could not be attached: {error}");
            let ended = self.host().end(id, Ending::new(Cause::StartFailed, why)).await;
            tracing::debug!(sandbox.id = %id, ?ended, "a sandbox lacks a volume");
            return;
        }
    }

    async fn judge_attach(
        &self,
        caller: &Caller,
        id: &SandboxId,
        mount: &NewMount,
    ) -> Result<(crate::authority::Permit, Volume), Error> {
        let action = Action::VolumeAttach;
        let (permit, row) = self.judge_sandbox(caller, action, id).await?;
        let (_, volume) = self.judge_volume(caller, action, &mount.volume).await?;
        self.volumes()?;
        running(row)?;
        Ok((permit, volume))
    }

    /// Does what a row in `attaching` says. What fails is undone.
    pub(crate) async fn finish_attach(
        &self,
        volume: &Volume,
        mut attachment: Attachment,
    ) -> Result<Attachment, Error> {
        let volumes = self.volumes()?;
        let _gate = volumes.gates.pass(&volume.id).await;
        let disk = Disk {
            volume: volume.id.clone(),
            slot: attachment.slot,
            file: volumes.disks.path(&volume.id),
            bytes: volume.size.bytes(),
        };
        let (id, path) = (attachment.sandbox.clone(), attachment.path.as_str());
        match self.host().attach(&id, &disk, path).await {
            Ok(()) => {
                let state = AttachmentState::Attached;
                let moved = self.store().move_attachment(&volume.id, &id, state, None).await?;
                if moved == store::sandboxes::Moved::No {
                    return Err(Error::not_running("the sandbox ended in the meantime"));
                }
                attachment.state = state;
                Ok(attachment)
            }
            Err(error) => {
                let error = from_volume(error);
                match self.host().detach(&id, attachment.slot, path).await {
                    Ok(()) => self.store().remove_attachment(&volume.id, &id).await?,
                    // It ends with the sandbox, or is detached by whoever asks.
                    Err(undone) => tracing::warn!(
                        volume.id = %volume.id, sandbox.id = %id,
                        error = &undone as &dyn std::error::Error,
                        "a volume that was not attached could not be taken back",
                    ),
                }
                Err(error)
            }
        }
    }

    /// Does what a row in `detaching` says. A volume that is in use stays.
    pub(crate) async fn finish_detach(&self, attachment: &Attachment) -> Result<(), Error> {
        let Attachment { volume, sandbox, slot, path, .. } = attachment;
        let _gate = self.volumes()?.gates.pass(volume).await;
        match self.host().detach(sandbox, *slot, path.as_str()).await {
            Ok(()) => Ok(self.store().remove_attachment(volume, sandbox).await?),
            // Ended in between, and the lease with it.
            Err(VolumeError::Host(HostError::NotFound | HostError::Ended(_))) => Ok(()),
            Err(error) => {
                let back = AttachmentState::Attached;
                let moved = self.store().move_attachment(volume, sandbox, back, None).await?;
                tracing::debug!(?moved, "a volume stays attached");
                Err(from_volume(error))
            }
        }
    }

    /// Whether a lease is of a sandbox that runs.
    pub(crate) async fn holder_runs(&self, attachment: &Attachment) -> Result<bool, Error> {
        let row = self.store().sandbox(&attachment.sandbox).await?;
        Ok(row.is_some_and(|row| row.phase == Phase::Running))
    }
}

fn describe(mount: &NewMount) -> Detail {
    detail([("volume", object(&mount.volume).into()), ("path", mount.path.as_str().into())])
}

/// 409: somebody has it.
pub(super) fn taken(lease: &Attachment) -> Error {
    Error::Conflict {
        code: ConflictCode::VolumeAttached,
        detail: format!(
            "sandbox {} has the volume at {}; detach it there, or end that sandbox",
            lease.sandbox, lease.path
        ),
    }
}

fn refusal(asked: Attached) -> Error {
    let conflict = |code, detail: &str| Error::Conflict { code, detail: detail.to_owned() };
    match asked {
        Attached::New(lease) | Attached::Before(lease) | Attached::Taken(lease) => taken(&lease),
        Attached::NotReady => {
            conflict(ConflictCode::VolumeNotReady, "the volume is not ready; look at its state")
        }
        Attached::NotRunning => Error::not_running("the sandbox is not running"),
        Attached::PathTaken(lease) => Error::invalid(
            "path",
            format!("volume {} is at {}; choose another place", lease.volume, lease.path),
        ),
        Attached::NoSlot => Error::Conflict {
            code: ConflictCode::TooManyVolumes,
            detail: format!("a sandbox has at most {SLOTS} volumes; detach one first"),
        },
    }
}

fn from_volume(error: VolumeError) -> Error {
    match error {
        VolumeError::Busy => Error::Conflict {
            code: ConflictCode::VolumeBusy,
            detail: "something in the sandbox uses the volume; end what has files open there or \
                     has it as its directory"
                .to_owned(),
        },
        VolumeError::Guest(_) => {
            Error::Conflict { code: ConflictCode::VolumeRefused, detail: error.to_string() }
        }
        VolumeError::Host(error) => from_host(error),
    }
}

/// What a checkpoint is told when the sandbox could not hold the volume still.
pub(super) fn not_still(error: VolumeError) -> Error {
    from_volume(error)
}
