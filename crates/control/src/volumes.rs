//! Volumes: made, restored, listed, deleted.
//!
//! ```text
//!  judge ──► row `making` + line ──► task: file, or chunks ──► row `ready`
//!  judge ──► row `deleting` + line ──► task: file, objects ──► no row
//! ```
//!
//! Attaching is in [`attach`](self), checkpoints in `checkpoints`. A task is ours,
//! so a client that hangs up leaves nothing half-made; what takes longer than a
//! client waits is seen by its state. What a killed server left is finished by
//! [`Control::recover_volumes`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use domain::{
    caller::Caller,
    id::{CheckpointId, VolumeId},
    region::Region,
    volume::{KeptState, VolumeName, VolumeRef, VolumeSize},
};
use store::{
    chunks::{self, Place},
    disks::{DiskError, Disks},
    objects::Objects,
    volumes::{Attachment, Deleting, Volume, VolumeAdded},
};
use tokio::time::Instant;

use crate::{
    Control,
    authority::{Action, Owner, Permit, may},
    control::{Detail, detail},
    error::{ConflictCode, Error},
};

mod attach;
mod checkpoints;
mod recovery;

pub use attach::{MountedVolume, NewMount};
pub use store::checkpoints::Checkpoint;

/// How long a client waits for what a task does before it is told the state.
const PATIENCE: Duration = Duration::from_secs(45);

/// What volumes are made of here.
#[derive(Debug)]
pub struct Volumes {
    disks: Disks,
    objects: Objects,
    limits: VolumeLimits,
    /// Held while room is looked for and taken.
    admission: tokio::sync::Mutex<()>,
    gates: Gates,
    /// Checkpoints and restores at the same time.
    places: tokio::sync::Semaphore,
}

/// What an operator allows.
#[derive(Clone, Copy, Debug)]
pub struct VolumeLimits {
    /// The largest volume.
    pub most_mib: u32,
    /// All volumes of an organisation together.
    pub most_total_mib: u64,
    /// What stays free of the host's disk, in bytes.
    pub reserve: u64,
    /// The longest a volume may be held still for a checkpoint.
    pub still: Duration,
    /// The longest a checkpoint, a restore or a deletion may take.
    pub transfer: Duration,
}

impl Default for VolumeLimits {
    fn default() -> Self {
        Self {
            most_mib: 102_400,
            most_total_mib: 512_000,
            reserve: 1 << 30,
            still: Duration::from_secs(60),
            transfer: Duration::from_secs(3600),
        }
    }
}

/// One lock for each volume in use.
#[derive(Debug, Default)]
struct Gates(Mutex<HashMap<VolumeId, Weak<tokio::sync::Mutex<()>>>>);

/// A request for a volume.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name.
    pub name: VolumeName,
    /// Its size; that of the checkpoint where it is made from one.
    pub size: Option<VolumeSize>,
    /// Where it must be; here if absent.
    pub region: Option<Region>,
    /// What it is restored from.
    pub checkpoint: Option<CheckpointId>,
}

/// A volume with what is true of it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeView {
    /// What is on record.
    pub volume: Volume,
    /// What it takes of the host's disk.
    pub used_bytes: u64,
    /// Who has it.
    pub attachment: Option<Attachment>,
}

impl Volumes {
    /// Puts the parts together.
    pub fn new(disks: Disks, objects: Objects, limits: VolumeLimits) -> Self {
        Self {
            disks,
            objects,
            limits,
            admission: tokio::sync::Mutex::new(()),
            gates: Gates::default(),
            places: tokio::sync::Semaphore::new(4),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.limits.transfer
    }

    /// The place of a checkpoint's objects.
    fn place(checkpoint: &Checkpoint) -> Place {
        Place {
            volume: checkpoint.volume.clone(),
            checkpoint: checkpoint.id.clone(),
            region: checkpoint.region.clone(),
            bytes: checkpoint.size.bytes(),
        }
    }
}

impl Gates {
    /// Waits for whoever attaches, detaches, copies or deletes this volume.
    async fn pass(&self, id: &VolumeId) -> tokio::sync::OwnedMutexGuard<()> {
        let gate = {
            let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            gates.retain(|_, gate| gate.strong_count() > 0);
            let known = gates.get(id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let gate = Arc::default();
                gates.insert(id.clone(), Arc::downgrade(&gate));
                gate
            })
        };
        gate.lock_owned().await
    }
}

impl Control {
    /// Makes a volume: an empty one, or one with the data of a checkpoint.
    ///
    /// Answers when it is ready, or with `making` when that takes longer than a
    /// client waits.
    pub async fn create_volume(
        &self,
        caller: &Caller,
        new: NewVolume,
    ) -> Result<VolumeView, Error> {
        let action = Action::VolumeCreate;
        let told = describe(&new);
        let judged = self.judge_volume_create(caller, &new).await;
        let (permit, volume, from) = match judged {
            Ok(judged) => judged,
            Err(error) => return Err(self.refuse(caller, action, None, told, error).await),
        };
        let volumes = self.volumes()?;
        let admission = volumes.admission.lock().await;
        if let Err(error) = self.room_for(volume.size).await {
            return Err(self.refuse(caller, action, None, told, error).await);
        }
        let line = self.allowed(caller, permit, Some(volume.id.as_str()), told.clone());
        let most = volumes.limits.most_total_mib;
        let refusal = match self.store().add_volume(&volume, most, &line).await? {
            VolumeAdded::New => None,
            VolumeAdded::NameTaken => Some(Error::Conflict {
                code: ConflictCode::NameTaken,
                detail: format!("there is a volume {} already", volume.name),
            }),
            VolumeAdded::Full { in_use_mib } => Some(Error::VolumesFull {
                detail: format!(
                    "{in_use_mib} of {most} MiB of volumes are in use; delete one and try again"
                ),
            }),
            VolumeAdded::SourceGone => Some(Error::NotFound { noun: "checkpoint" }),
        };
        if let Some(refusal) = refusal {
            return Err(self.refuse(caller, action, None, told, refusal).await);
        }
        // Its file has its size from here on, so the room is taken.
        let begun = self.begin_disk(&volume, from.is_some()).await;
        drop(admission);
        let control = self.clone();
        let row = volume.clone();
        let making = self.tasks().spawn(async move {
            let made = match (begun, from) {
                (Err(error), _) => Err(error),
                (Ok(None), _) => Ok(()),
                (Ok(Some(file)), Some(from)) => control.restore_disk(&row, &from, file).await,
                (Ok(Some(_)), None) => Ok(()),
            };
            control.settle_new_volume(&row, made).await
        });
        match tokio::time::timeout(PATIENCE, making).await {
            Ok(Ok(settled)) => settled?,
            Ok(Err(error)) => return Err(Error::Internal { source: Box::new(error) }),
            Err(_) => {}
        }
        let row = self.store().volume(&volume.id).await?;
        self.view(row.ok_or(Error::NotFound { noun: "volume" })?).await
    }

    /// The volumes of the organisation by name.
    pub async fn list_volumes(&self, caller: &Caller) -> Result<Vec<VolumeView>, Error> {
        let action = Action::VolumeList;
        let judged = may(caller, action, Owner::Caller).map_err(Error::from);
        let judged = judged.map(|permit| (permit, ()));
        self.record(caller, action, None, Detail::new(), judged).await?;
        let mut views = Vec::new();
        for volume in self.store().volumes(&caller.organization).await? {
            views.push(self.view(volume).await?);
        }
        Ok(views)
    }

    /// One volume.
    pub async fn get_volume(
        &self,
        caller: &Caller,
        which: &VolumeRef,
    ) -> Result<VolumeView, Error> {
        let action = Action::VolumeGet;
        let judged = self.judge_volume(caller, action, which).await;
        let object = object(which);
        let volume = self.record(caller, action, Some(&object), Detail::new(), judged).await?;
        self.view(volume).await
    }

    /// Deletes a volume with its data and all its checkpoints (S40).
    ///
    /// Deleting one that is being deleted waits for the same end.
    pub async fn delete_volume(&self, caller: &Caller, which: &VolumeRef) -> Result<(), Error> {
        let action = Action::VolumeDelete;
        let named = object(which);
        let (permit, volume) = match self.judge_volume(caller, action, which).await {
            Ok(judged) => judged,
            Err(error) => {
                return Err(self.refuse(caller, action, Some(&named), Detail::new(), error).await);
            }
        };
        self.volumes()?;
        let object = Some(volume.id.as_str());
        let line = self.allowed(caller, permit, object, Detail::new());
        let refusal = match self.store().begin_delete_volume(&volume.id, &line).await? {
            Deleting::Begun => None,
            Deleting::Attached(lease) => Some(attach::taken(&lease)),
            Deleting::Busy => Some(Error::Conflict {
                code: ConflictCode::VolumeNotReady,
                detail: "a checkpoint or a restore of the volume is under way; try again when it \
                         is over"
                    .to_owned(),
            }),
            Deleting::Gone => Some(Error::NotFound { noun: "volume" }),
        };
        if let Some(refusal) = refusal {
            return Err(self.refuse(caller, action, object, Detail::new(), refusal).await);
        }
        let control = self.clone();
        let id = volume.id.clone();
        let deleting = self.tasks().spawn(async move { control.finish_deleting(&id).await });
        match tokio::time::timeout(PATIENCE, deleting).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(Error::Internal { source: Box::new(error) }),
            Err(_) => Err(Error::Unavailable {
                detail: "the volume is still being deleted; ask again",
                source: None,
            }),
        }
    }

    async fn judge_volume_create(
        &self,
        caller: &Caller,
        new: &NewVolume,
    ) -> Result<(Permit, Volume, Option<Checkpoint>), Error> {
        let permit = may(caller, Action::VolumeCreate, Owner::Caller)?;
        let volumes = self.volumes()?;
        let here = &self.settings().region;
        if new.region.as_ref().is_some_and(|region| region != here) {
            return Err(Error::invalid("region", format!("this installation is in region {here}")));
        }
        let from = match &new.checkpoint {
            None => None,
            Some(id) => Some(self.usable_checkpoint(caller, id).await?),
        };
        let size = match (new.size, &from) {
            (Some(size), None) => size,
            (None, Some(from)) => from.size,
            (Some(size), Some(from)) if size == from.size => size,
            (Some(_), Some(from)) => {
                let size =
                    format!("the checkpoint is of {} MiB; leave the size out", from.size.as_mib());
                return Err(Error::invalid("size_mb", size));
            }
            (None, None) => return Err(Error::invalid("size_mb", "say how large it is to be")),
        };
        if size.as_mib() > volumes.limits.most_mib {
            let most = format!("at most {} MiB here", volumes.limits.most_mib);
            return Err(Error::invalid("size_mb", most));
        }
        let volume = Volume {
            id: VolumeId::from_random(self.random()),
            organization: caller.organization.clone(),
            owner: caller.user.clone(),
            region: here.clone(),
            name: new.name.clone(),
            size,
            state: KeptState::Making,
            detail: None,
            source: new.checkpoint.clone(),
            created: self.now(),
        };
        Ok((permit, volume, from))
    }

    /// Finds a volume and judges what the caller wants of it.
    pub(crate) async fn judge_volume(
        &self,
        caller: &Caller,
        action: Action,
        which: &VolumeRef,
    ) -> Result<(Permit, Volume), Error> {
        let found = match which {
            VolumeRef::Id(id) => self.store().volume(id).await?,
            VolumeRef::Name(name) => self.store().volume_named(&caller.organization, name).await?,
        };
        let owner = found.as_ref().map(|volume| &volume.organization);
        match (may(caller, action, Owner::Found(owner)), found) {
            (Ok(permit), Some(volume)) => Ok((permit, volume)),
            (Err(crate::authority::Denied::Scope(scope)), _) => Err(Error::Forbidden { scope }),
            _ => Err(Error::NotFound { noun: "volume" }),
        }
    }

    pub(crate) fn volumes(&self) -> Result<&Volumes, Error> {
        self.installed_volumes().ok_or(Error::Unavailable {
            detail: "this server has no place for volumes",
            source: None,
        })
    }

    /// Refuses a volume that the host's disk could not hold when it is full.
    async fn room_for(&self, size: VolumeSize) -> Result<(), Error> {
        let volumes = self.volumes()?;
        let disks = volumes.disks.clone();
        let room = blocking(move || Ok(disks.room()?)).await.map_err(disk_failed)?;
        if room.has(size, volumes.limits.reserve) {
            return Ok(());
        }
        Err(Error::VolumesFull {
            detail: "this host's disk has no room for the volume; delete another or choose a \
                     smaller size"
                .to_owned(),
        })
    }

    /// Makes the file: whole, or with room for what is restored into it.
    async fn begin_disk(
        &self,
        volume: &Volume,
        restored: bool,
    ) -> Result<Option<std::fs::File>, Error> {
        let disks = self.volumes()?.disks.clone();
        let (id, size) = (volume.id.clone(), volume.size);
        let made = blocking(move || {
            if restored {
                return disks.begin_restore(&id, size).map(Some);
            }
            disks.create(&id, size).map(|()| None)
        });
        made.await.map_err(disk_failed)
    }

    async fn restore_disk(
        &self,
        volume: &Volume,
        from: &Checkpoint,
        file: std::fs::File,
    ) -> Result<(), Error> {
        let volumes = self.volumes()?;
        let _place = volumes.places.acquire().await;
        let digest = from.manifest.ok_or(Error::NotFound { noun: "checkpoint" })?;
        let copy = file.try_clone().map_err(|error| disk_failed(error.into()))?;
        let place = Volumes::place(from);
        let restored = chunks::restore(&volumes.objects, &place, &digest, copy, volumes.deadline());
        restored.await.map_err(checkpoints::failed)?;
        let (disks, id) = (volumes.disks.clone(), volume.id.clone());
        blocking(move || disks.finish(&id, &file)).await.map_err(disk_failed)
    }

    /// Records what came of a volume. One that could not be made leaves no file;
    /// an empty one leaves no row either.
    async fn settle_new_volume(
        &self,
        volume: &Volume,
        made: Result<(), Error>,
    ) -> Result<(), Error> {
        let Err(error) = made else {
            let moved = self.store().settle_volume(&volume.id, None).await?;
            tracing::debug!(volume.id = %volume.id, ?moved, "a volume was made");
            return Ok(());
        };
        tracing::warn!(volume.id = %volume.id, error = &error as &dyn std::error::Error, "a volume could not be made");
        let (disks, id) = (self.volumes()?.disks.clone(), volume.id.clone());
        blocking(move || disks.remove(&id)).await.map_err(disk_failed)?;
        let why = error.to_string();
        let moved = self.store().settle_volume(&volume.id, Some(&why)).await?;
        tracing::debug!(volume.id = %volume.id, ?moved, "a volume was given up");
        if volume.source.is_some() {
            // Its row says why, also to a client that did not wait.
            return Ok(());
        }
        self.store().drop_failed_volume(&volume.id).await?;
        Err(error)
    }

    /// Removes what is left of a volume that is being deleted.
    pub(crate) async fn finish_deleting(&self, id: &VolumeId) -> Result<(), Error> {
        let volumes = self.volumes()?;
        let _gate = volumes.gates.pass(id).await;
        let (disks, own) = (volumes.disks.clone(), id.clone());
        blocking(move || disks.remove(&own)).await.map_err(|error| match error {
            DiskError::InUse => Error::Unavailable {
                detail: "a machine still has the volume; ask again",
                source: None,
            },
            error => disk_failed(error),
        })?;
        let forgotten = chunks::forget_volume(&volumes.objects, id, volumes.deadline()).await;
        forgotten.map_err(|error| checkpoints::failed(error.into()))?;
        Ok(self.store().remove_volume(id).await?)
    }

    async fn view(&self, volume: Volume) -> Result<VolumeView, Error> {
        let attachment = self.store().attachment(&volume.id).await?;
        let used = self.installed_volumes().and_then(|volumes| {
            // A look at one inode; an absent file uses nothing.
            volumes.disks.used_bytes(&volume.id).ok()
        });
        Ok(VolumeView { volume, used_bytes: used.unwrap_or(0), attachment })
    }
}

/// How an audit line names what a caller named.
fn object(which: &VolumeRef) -> String {
    match which {
        VolumeRef::Id(id) => id.to_string(),
        VolumeRef::Name(name) => name.to_string(),
    }
}

fn describe(new: &NewVolume) -> Detail {
    let mut told = detail([("name", new.name.as_str().into())]);
    if let Some(size) = new.size {
        told.insert("size_mb".to_owned(), size.as_mib().into());
    }
    if let Some(checkpoint) = &new.checkpoint {
        told.insert("checkpoint".to_owned(), checkpoint.as_str().into());
    }
    told
}

/// Gives work that blocks a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DiskError> + Send + 'static,
) -> Result<T, DiskError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| DiskError::Io(std::io::Error::other(error)))?
}

/// A fault of this host's disk.
fn disk_failed(error: DiskError) -> Error {
    match error {
        DiskError::InUse => Error::Conflict {
            code: ConflictCode::VolumeAttached,
            detail: "the volume is in use".to_owned(),
        },
        DiskError::TooLate => Error::Unavailable {
            detail: "copying the volume took longer than it may be held still",
            source: None,
        },
        DiskError::Mkfs(_) | DiskError::Io(_) => Error::Internal { source: Box::new(error) },
    }
}
