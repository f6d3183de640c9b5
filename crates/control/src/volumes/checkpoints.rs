//! Checkpoints: a moment of a volume, kept outside of this host.
//!
//! A volume that a sandbox has is held still by its guest while its file is
//! copied; then the sandbox goes on, and the copy is uploaded. Of a paused
//! sandbox's volume there is no such moment: part of its data is in the memory
//! that was captured.

use std::time::Instant;

use domain::{
    caller::Caller,
    id::{CheckpointId, VolumeId},
    image::digest::Digest,
    volume::{KeptState, VolumeRef},
};
use store::{
    checkpoints::{Checkpoint, Finished},
    chunks::{self, ChunkError, Place},
    objects::ObjectError,
    sandboxes::Moved,
    volumes::Volume,
};

use crate::{
    Control,
    authority::{Action, Denied, Owner, Permit, may},
    control::{Detail, detail},
    error::{ConflictCode, Error},
    volumes::{PATIENCE, Volumes, attach, blocking, disk_failed, object},
};

impl Control {
    /// Makes a checkpoint of a volume.
    ///
    /// Answers when it is whole, or with `making` when that takes longer than a
    /// client waits.
    pub async fn create_checkpoint(
        &self,
        caller: &Caller,
        which: &VolumeRef,
    ) -> Result<Checkpoint, Error> {
        let action = Action::CheckpointCreate;
        let judged = self.judge_volume(caller, action, which).await;
        let judged = judged.and_then(|judged| self.volumes().map(|_| judged));
        let (permit, volume) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                let object = object(which);
                return Err(self.refuse(caller, action, Some(&object), Detail::new(), error).await);
            }
        };
        let checkpoint = Checkpoint {
            id: CheckpointId::from_random(self.random()),
            volume: volume.id.clone(),
            organization: volume.organization.clone(),
            region: volume.region.clone(),
            size: volume.size,
            state: KeptState::Making,
            detail: None,
            data_bytes: 0,
            stored_bytes: 0,
            manifest: None,
            created: self.now(),
            finished: None,
        };
        let object = Some(volume.id.as_str());
        let told = || detail([("checkpoint", checkpoint.id.as_str().into())]);
        let line = self.allowed(caller, permit, object, told());
        if self.store().add_checkpoint(&checkpoint, &line).await? == Moved::No {
            let error = Error::Conflict {
                code: ConflictCode::VolumeNotReady,
                detail: "the volume is not ready, or a checkpoint of it is being made".to_owned(),
            };
            return Err(self.refuse(caller, action, object, told(), error).await);
        }
        let control = self.clone();
        let row = checkpoint.clone();
        let making =
            self.tasks().spawn(async move { control.make_checkpoint(&volume, &row).await });
        match tokio::time::timeout(PATIENCE, making).await {
            Ok(Ok(made)) => made?,
            Ok(Err(error)) => return Err(Error::Internal { source: Box::new(error) }),
            Err(_) => {}
        }
        let row = self.store().checkpoint(&checkpoint.id).await?;
        row.ok_or(Error::NotFound { noun: "checkpoint" })
    }

    /// The checkpoints of a volume, newest first.
    pub async fn list_checkpoints(
        &self,
        caller: &Caller,
        which: &VolumeRef,
    ) -> Result<Vec<Checkpoint>, Error> {
        let action = Action::CheckpointList;
        let judged = self.judge_volume(caller, action, which).await;
        let object = object(which);
        let volume = self.record(caller, action, Some(&object), Detail::new(), judged).await?;
        Ok(self.store().checkpoints(&volume.id).await?)
    }

    /// Deletes a checkpoint, with what of its data no other one needs.
    pub async fn delete_checkpoint(&self, caller: &Caller, id: &CheckpointId) -> Result<(), Error> {
        let action = Action::CheckpointDelete;
        let object = Some(id.as_str());
        let (permit, checkpoint) = match self.judge_checkpoint(caller, action, id).await {
            Ok(judged) => judged,
            Err(error) => {
                return Err(self.refuse(caller, action, object, Detail::new(), error).await);
            }
        };
        self.volumes()?;
        let line = self.allowed(caller, permit, object, Detail::new());
        if self.store().begin_delete_checkpoint(id, &line).await? == Moved::No {
            let error = Error::Conflict {
                code: ConflictCode::VolumeNotReady,
                detail: "the checkpoint is being made, or a volume is being restored from it"
                    .to_owned(),
            };
            return Err(self.refuse(caller, action, object, Detail::new(), error).await);
        }
        let control = self.clone();
        let deleting = self
            .tasks()
            .spawn(async move { control.finish_deleting_checkpoint(&checkpoint).await });
        match tokio::time::timeout(PATIENCE, deleting).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(Error::Internal { source: Box::new(error) }),
            Err(_) => Err(Error::Unavailable {
                detail: "the checkpoint is still being deleted; ask again",
                source: None,
            }),
        }
    }

    /// The checkpoint that a volume is to be restored from.
    pub(super) async fn usable_checkpoint(
        &self,
        caller: &Caller,
        id: &CheckpointId,
    ) -> Result<Checkpoint, Error> {
        let (_, checkpoint) = self.judge_checkpoint(caller, Action::VolumeCreate, id).await?;
        if checkpoint.region != self.settings().region {
            return Err(Error::invalid(
                "checkpoint",
                format!("it stays in region {}", checkpoint.region),
            ));
        }
        if checkpoint.state != KeptState::Ready {
            return Err(Error::Conflict {
                code: ConflictCode::VolumeNotReady,
                detail: format!("the checkpoint is {}", checkpoint.state.as_str()),
            });
        }
        Ok(checkpoint)
    }

    async fn judge_checkpoint(
        &self,
        caller: &Caller,
        action: Action,
        id: &CheckpointId,
    ) -> Result<(Permit, Checkpoint), Error> {
        let found = self.store().checkpoint(id).await?;
        let owner = found.as_ref().map(|checkpoint| &checkpoint.organization);
        match (may(caller, action, Owner::Found(owner)), found) {
            (Ok(permit), Some(checkpoint)) => Ok((permit, checkpoint)),
            (Err(Denied::Scope(scope)), _) => Err(Error::Forbidden { scope }),
            _ => Err(Error::NotFound { noun: "checkpoint" }),
        }
    }

    /// Does what a row in `making` says, and records what came of it.
    async fn make_checkpoint(&self, volume: &Volume, checkpoint: &Checkpoint) -> Result<(), Error> {
        match self.copy_and_upload(volume, checkpoint).await {
            Ok(finished) => {
                let now = self.now();
                let moved = self.store().finish_checkpoint(&checkpoint.id, &finished, now).await?;
                tracing::info!(
                    volume.id = %volume.id, checkpoint.id = %checkpoint.id, ?moved,
                    finished.data_bytes, finished.stored_bytes, "a checkpoint was made",
                );
                Ok(())
            }
            Err(error) => {
                let moved =
                    self.store().fail_checkpoint(&checkpoint.id, &error.to_string()).await?;
                tracing::warn!(
                    volume.id = %volume.id, checkpoint.id = %checkpoint.id, ?moved,
                    error = &error as &dyn std::error::Error, "a checkpoint was not made",
                );
                Err(error)
            }
        }
    }

    async fn copy_and_upload(
        &self,
        volume: &Volume,
        checkpoint: &Checkpoint,
    ) -> Result<Finished, Error> {
        let volumes = self.volumes()?;
        let _place = volumes.places.acquire().await;
        let copy = {
            let _gate = volumes.gates.pass(&volume.id).await;
            self.still_copy(volume).await?
        };
        let place = Volumes::place(checkpoint);
        let saved = chunks::save(&volumes.objects, &place, copy, volumes.deadline()).await;
        saved.map_err(failed)
    }

    /// A copy of the volume as it is at one moment.
    async fn still_copy(&self, volume: &Volume) -> Result<std::fs::File, Error> {
        let volumes = self.volumes()?;
        let limit = volumes.limits.still;
        let (disks, id) = (volumes.disks.clone(), volume.id.clone());
        let Some(lease) = self.store().attachment(&volume.id).await? else {
            // Nobody has it: the lock says that this stays so.
            let copied = blocking(move || {
                let _locked = disks.lock(&id)?;
                disks.copy(&id, Instant::now() + limit * 10)
            });
            return copied.await.map_err(disk_failed);
        };
        if !self.holder_runs(&lease).await? {
            return Err(Error::Conflict {
                code: ConflictCode::VolumeAttached,
                detail: format!(
                    "sandbox {} has the volume and does not run; resume it first",
                    lease.sandbox
                ),
            });
        }
        let copied = blocking(move || disks.copy(&id, Instant::now() + limit));
        let mount = (lease.slot, lease.path.as_str());
        let copied = self.host().while_still(&lease.sandbox, mount, limit, copied).await;
        copied.map_err(attach::not_still)?.map_err(disk_failed)
    }

    /// Removes what is left of a checkpoint that is being deleted.
    pub(crate) async fn finish_deleting_checkpoint(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        let volumes = self.volumes()?;
        let _gate = volumes.gates.pass(&checkpoint.volume).await;
        let others = self.other_checkpoints(&checkpoint.volume, &checkpoint.id).await?;
        let Some(others) = others else {
            // One that is being made may count on chunks of this one.
            return Err(Error::Unavailable {
                detail: "a checkpoint of the volume is being made; ask again when it is whole",
                source: None,
            });
        };
        let place = Volumes::place(checkpoint);
        let forgotten = chunks::forget(&volumes.objects, &place, &others, volumes.deadline());
        forgotten.await.map_err(failed)?;
        Ok(self.store().remove_checkpoint(&checkpoint.id).await?)
    }

    /// The other checkpoints of a volume that are whole; none where one is being
    /// made.
    async fn other_checkpoints(
        &self,
        volume: &VolumeId,
        but: &CheckpointId,
    ) -> Result<Option<Vec<(Place, Digest)>>, Error> {
        let mut others = Vec::new();
        for other in self.store().checkpoints(volume).await? {
            match (other.state, other.manifest) {
                _ if other.id == *but => {}
                (KeptState::Making, _) => return Ok(None),
                (KeptState::Ready, Some(digest)) => others.push((Volumes::place(&other), digest)),
                _ => {}
            }
        }
        Ok(Some(others))
    }
}

/// What a client can do about a fault of the object store.
pub(super) fn failed(error: ChunkError) -> Error {
    match error {
        ChunkError::Damaged(_) => {
            Error::Conflict { code: ConflictCode::CheckpointDamaged, detail: error.to_string() }
        }
        ChunkError::Objects(
            ObjectError::NotFound | ObjectError::TooLarge | ObjectError::Exists,
        ) => Error::Conflict {
            code: ConflictCode::CheckpointDamaged,
            detail: format!("the checkpoint is damaged: {error}"),
        },
        ChunkError::Objects(ObjectError::Denied(_)) => Error::Unavailable {
            detail: "the object store refused the server; its operator has to look at the \
                     credentials",
            source: Some(Box::new(error)),
        },
        ChunkError::Objects(ObjectError::Unavailable(_)) => Error::Unavailable {
            detail: "the object store does not answer; try again later",
            source: Some(Box::new(error)),
        },
        ChunkError::Objects(ObjectError::Settings(_)) | ChunkError::Disk(_) => {
            Error::Internal { source: Box::new(error) }
        }
    }
}
