//! Snapshots by name: made of a running sandbox, started from, removed.
//!
//! The row is written before anything is captured and removed after the files
//! are. Whatever is in between when the server stops, [`crate::recovery`] finds
//! it by the row. Also here is what pauses and copies do with their snapshots.

use std::time::Duration;

use domain::{
    caller::Caller,
    id::{AuditId, OrganizationId, SandboxId, SnapshotId, UserId},
    image::{Image, digest::Digest},
    snapshot::{SnapshotKey, SnapshotKind, SnapshotName},
    template::TemplateName,
    time::Timestamp,
};
use sandbox::{
    backend::{BackendError, Captured, Sealed},
    host::HostError,
};
use store::{
    audit::{AuditLine, Outcome},
    sandboxes::{Moved, Sandbox},
    snapshots::{AddedSnapshot, SnapshotBytes, SnapshotFilter},
};
// The surfaces show snapshots as they are kept: the row has nothing to hide.
pub use store::snapshots::{Purpose, Snapshot, SnapshotState};

use crate::{
    Control,
    authority::{Action, Owner, Permit, may},
    control::{Detail, detail, random},
    error::{ConflictCode, Error},
    images::ImagesError,
    moves::{Begun, Kind},
    page::{Cursor, Limit, Page, page},
    sandboxes::{from_host, running},
};

/// More copies than any organisation may have at a time count as many.
const MOST_FORKS: u32 = 16;
/// Of steps, a limit of their own keeps fewer.
const MOST_OF_TEMPLATES: u32 = 256;

/// A request for a snapshot.
#[derive(Clone, Debug)]
pub struct NewSnapshot {
    /// What it is to be called.
    pub name: SnapshotName,
    /// For how long it is kept; until it is removed if absent.
    pub keep: Option<Duration>,
}

/// How a snapshot is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRef {
    /// By its id.
    Id(SnapshotId),
    /// By the name it was given.
    Name(SnapshotName),
}

/// Which snapshots to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct ListSnapshots {
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most so many.
    pub limit: Limit,
    /// Where the last page ended.
    pub after: Option<Cursor>,
}

impl std::str::FromStr for SnapshotRef {
    type Err = Error;

    fn from_str(raw: &str) -> Result<Self, Error> {
        if let Ok(id) = raw.parse() {
            return Ok(Self::Id(id));
        }
        // What can be no name names nothing.
        raw.parse().map(Self::Name).map_err(|_| Error::NotFound { noun: "snapshot" })
    }
}

impl SnapshotRef {
    /// The text that names it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Id(id) => id.as_str(),
            Self::Name(name) => name.as_str(),
        }
    }
}

impl Control {
    /// Makes a snapshot of a running sandbox, which stands still meanwhile and
    /// goes on. Returns when the snapshot is whole.
    pub async fn create_snapshot(
        &self,
        caller: &Caller,
        id: &SandboxId,
        new: NewSnapshot,
    ) -> Result<Snapshot, Error> {
        let action = Action::SnapshotCreate;
        let object = Some(id.as_str());
        let told = detail([("name", new.name.as_str().into())]);
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = judged.and_then(|(permit, row)| Ok((permit, running(row)?)));
        let made = match judged {
            Ok((permit, row)) => self.begin_snapshot(caller, permit, row, new, told.clone()).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(id) => {
                let row = self.store().snapshot(&id).await?;
                row.ok_or(Error::NotFound { noun: "snapshot" })
            }
            Err(error) => Err(self.refuse(caller, action, object, told, error).await),
        }
    }

    async fn begin_snapshot(
        &self,
        caller: &Caller,
        permit: Permit,
        row: Sandbox,
        new: NewSnapshot,
        mut told: Detail,
    ) -> Result<SnapshotId, Error> {
        let begun = match self.moves().begin(&row.id, Kind::Copy) {
            Begun::First(begun, waiting) => (begun, waiting),
            Begun::Busy(kind) => return Err(busy(kind)),
            Begun::Joined(_) => return Err(busy(Kind::Copy)),
        };
        let (mut snapshot, sealed) = self.planned(&row, &caller.user, Purpose::Named);
        snapshot.name = Some(new.name);
        snapshot.expires = new.keep.map(|keep| self.now().plus(keep));
        told.insert("snapshot".to_owned(), snapshot.id.as_str().into());
        let line = self.allowed(caller, permit, Some(row.id.as_str()), told);
        let (id, control) = (snapshot.id.clone(), self.clone());
        let (begun, waiting) = begun;
        self.tasks().spawn(async move {
            begun.end(control.make(&snapshot, sealed, &line).await);
        });
        waiting.outcome().await?;
        Ok(id)
    }

    /// Lists the named snapshots of the organisation.
    pub async fn list_snapshots(
        &self,
        caller: &Caller,
        query: ListSnapshots,
    ) -> Result<Page<Snapshot>, Error> {
        let action = Action::SnapshotList;
        let judged = may(caller, action, Owner::Caller).map_err(Error::from).and_then(|permit| {
            let after = query.after.as_ref().map(Cursor::read_pair::<i64, SnapshotId>);
            Ok((permit, after.transpose()?))
        });
        let after = self.record(caller, action, None, detail([]), judged).await?;
        let filter = SnapshotFilter {
            organization: caller.organization.clone(),
            sandbox: query.sandbox,
            limit: query.limit.get() + 1,
            after: after.map(|(created, id)| (Timestamp(created), id)),
        };
        let snapshots = self.store().snapshots(&filter).await?;
        Ok(page(snapshots, query.limit, |last| {
            Cursor::new(format_args!("{}.{}", last.created.0, last.id))
        }))
    }

    /// Shows a named snapshot.
    pub async fn get_snapshot(
        &self,
        caller: &Caller,
        which: &SnapshotRef,
    ) -> Result<Snapshot, Error> {
        let action = Action::SnapshotGet;
        let judged = self.judge_snapshot(caller, action, which).await;
        self.record(caller, action, Some(which.as_str()), Detail::new(), judged).await
    }

    /// Removes a named snapshot. When this returns, its key is gone.
    pub async fn delete_snapshot(&self, caller: &Caller, which: &SnapshotRef) -> Result<(), Error> {
        let action = Action::SnapshotDelete;
        let object = Some(which.as_str());
        let judged = self.judge_snapshot(caller, action, which).await;
        let judged = judged.and_then(|(permit, snapshot)| match snapshot.state {
            SnapshotState::Making => Err(not_ready(&snapshot)),
            SnapshotState::Ready | SnapshotState::Going => Ok((permit, snapshot)),
        });
        let (permit, snapshot) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                return Err(self.refuse(caller, action, object, Detail::new(), error).await);
            }
        };
        let line = self.allowed(caller, permit, Some(snapshot.id.as_str()), Detail::new());
        if self.store().mark_snapshot_going(&snapshot.id, &line).await? == Moved::No {
            self.store().append_audit(&line).await?;
        }
        self.sweep(&snapshot.id).await;
        Ok(())
    }

    async fn judge_snapshot(
        &self,
        caller: &Caller,
        action: Action,
        which: &SnapshotRef,
    ) -> Result<(Permit, Snapshot), Error> {
        let found = self.find_snapshot(&caller.organization, which).await?;
        let owner = found.as_ref().map(|snapshot| &snapshot.organization);
        let permit = may(caller, action, Owner::Found(owner))?;
        Ok((permit, found.ok_or(Error::NotFound { noun: "snapshot" })?))
    }

    /// Finds a snapshot that has a name. Those of pauses and copies are nobody's
    /// to see.
    pub(crate) async fn find_snapshot(
        &self,
        organization: &OrganizationId,
        which: &SnapshotRef,
    ) -> Result<Option<Snapshot>, Error> {
        let found = match which {
            SnapshotRef::Id(id) => self.store().snapshot(id).await?,
            SnapshotRef::Name(name) => self.store().snapshot_by_name(organization, name).await?,
        };
        Ok(found.filter(|snapshot| {
            snapshot.purpose == Purpose::Named && snapshot.state != SnapshotState::Going
        }))
    }

    /// A snapshot that is to be made of a sandbox, under a key of its own.
    pub(crate) fn planned(
        &self,
        of: &Sandbox,
        owner: &UserId,
        purpose: Purpose,
    ) -> (Snapshot, Sealed) {
        let id = SnapshotId::from_random(self.random());
        let mut key = [0; 32];
        (self.sources().random)(&mut key);
        let snapshot = Snapshot {
            id: id.clone(),
            organization: of.organization.clone(),
            owner: owner.clone(),
            region: of.region.clone(),
            kind: SnapshotKind::Full,
            purpose,
            name: None,
            sandbox: of.id.clone(),
            template: of.template.clone(),
            image: of.image,
            size: of.size,
            resources: of.resources,
            state: SnapshotState::Making,
            stored_bytes: 0,
            memory_bytes: 0,
            parent: of.parent.clone(),
            created: self.now(),
            expires: None,
        };
        (snapshot, Sealed { id, key: SnapshotKey::from_random(key) })
    }

    /// Records what is planned, with the line of whoever asked for it.
    pub(crate) async fn add_planned(
        &self,
        snapshot: &Snapshot,
        sealed: &Sealed,
        line: &AuditLine,
    ) -> Result<(), Error> {
        let limits = self.settings().snapshots;
        let (most, what) = match snapshot.purpose {
            Purpose::Pause => (limits.max_paused, "paused sandboxes"),
            Purpose::Named => (limits.max_named, "snapshots"),
            Purpose::Fork => (MOST_FORKS, "copies in the making"),
            Purpose::Template => (MOST_OF_TEMPLATES, "snapshots of templates and their steps"),
        };
        match self.store().add_snapshot(snapshot, &sealed.key, most, line).await? {
            AddedSnapshot::New => Ok(()),
            AddedSnapshot::NotRunning => {
                Err(Error::not_running("the sandbox stopped running in the meantime"))
            }
            AddedSnapshot::NameTaken => Err(Error::conflict(
                ConflictCode::SnapshotNameTaken,
                "there is a snapshot of that name; remove it or choose another name",
            )),
            AddedSnapshot::Full { in_use } => {
                Err(Error::KeptExceeded { what, limit: most, in_use })
            }
        }
    }

    /// Makes a snapshot of a sandbox that goes on. It is whole, or nothing of it
    /// is left.
    pub(crate) async fn make(
        &self,
        snapshot: &Snapshot,
        sealed: Sealed,
        line: &AuditLine,
    ) -> Result<(), Error> {
        self.refuse_with_volumes(&snapshot.sandbox).await?;
        self.add_planned(snapshot, &sealed, line).await?;
        let captured = match self.host().capture(&snapshot.sandbox, sealed).await {
            Ok(captured) => captured,
            Err(error) => {
                self.abandon(snapshot).await;
                return Err(from_capture(error));
            }
        };
        let told = detail([("bytes", captured.stored_bytes.into())]);
        let line = self.observed(snapshot, "snapshot.ready", told);
        match self.store().mark_snapshot_ready(&snapshot.id, bytes(captured), &line).await? {
            Moved::Yes => Ok(()),
            Moved::No => Err(Error::not_running("the snapshot was removed in the meantime")),
        }
    }

    /// Gives up a snapshot that did not become whole.
    pub(crate) async fn abandon(&self, snapshot: &Snapshot) {
        let line = self.observed(snapshot, "snapshot.abandoned", Detail::new());
        match self.store().abandon_snapshot(&snapshot.id, &line).await {
            Ok(Moved::Yes) => self.sweep(&snapshot.id).await,
            // It is whole, or gone already.
            Ok(Moved::No) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(snapshot.id = %snapshot.id, error, "a snapshot was not given up; the next start does");
            }
        }
    }

    /// Removes a snapshot that nothing needs any more.
    pub(crate) async fn discard(&self, snapshot: &Snapshot, action: &str) {
        let line = self.observed(snapshot, action, Detail::new());
        match self.store().mark_snapshot_going(&snapshot.id, &line).await {
            Ok(Moved::Yes | Moved::No) => self.sweep(&snapshot.id).await,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(snapshot.id = %snapshot.id, error, "a snapshot was not removed; the next start does");
            }
        }
    }

    /// Removes the files of a snapshot whose key is gone, then its row. What does
    /// not succeed is tried again by [`Control::tend`].
    pub(crate) async fn sweep(&self, id: &SnapshotId) {
        if let Err(error) = self.host().forget(id).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(snapshot.id = %id, error, "the files of a snapshot are not removed yet");
            return;
        }
        if let Err(error) = self.store().remove_snapshot(id).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(snapshot.id = %id, error, "the row of a snapshot is not removed yet");
        }
    }

    /// The key of a snapshot that is ready, and whether it can be loaded here.
    pub(crate) async fn opened(&self, snapshot: &Snapshot) -> Result<Sealed, Error> {
        match self.host().loadable(&snapshot.id).await {
            Ok(()) => {}
            Err(HostError::Backend(BackendError::Incompatible(why))) => {
                return Err(Error::conflict(ConflictCode::SnapshotIncompatible, why));
            }
            Err(HostError::Backend(BackendError::NoSnapshot)) => {
                let why = "the snapshot's files are not on this host";
                return Err(Error::conflict(ConflictCode::SnapshotMissing, why));
            }
            Err(error) => return Err(from_host(error)),
        }
        let key = self.store().snapshot_key(&snapshot.id).await?;
        let key = key.ok_or(Error::NotFound { noun: "snapshot" })?;
        Ok(Sealed { id: snapshot.id.clone(), key })
    }

    /// The image that a machine was made of, if it is still the same.
    pub(crate) async fn image_of(
        &self,
        template: &TemplateName,
        digest: Digest,
    ) -> Result<Image, Error> {
        let changed = || {
            let why = format!(
                "image {template} is not the one that the snapshot was made with; bring that one \
                 back, or start anew"
            );
            Error::conflict(ConflictCode::SnapshotIncompatible, why)
        };
        // A template that was built stands for the image below it, which its name
        // does not tell.
        if let Some(image) = self.installed(template).await?
            && image.digest == digest
        {
            return Ok(image);
        }
        match self.images().with_digest(digest).await {
            Ok(image) => Ok(image),
            Err(ImagesError::NotFound) => Err(changed()),
            Err(ImagesError::Refused(source) | ImagesError::Unreadable(source)) => {
                Err(Error::Internal { source })
            }
        }
    }

    /// The line of something that nobody asked for.
    pub(crate) fn observed(&self, of: &Snapshot, action: &str, detail: Detail) -> AuditLine {
        AuditLine {
            id: AuditId::from_random(random(self.sources())),
            time: self.now(),
            organization: of.organization.clone(),
            user: None,
            token: None,
            action: action.to_owned(),
            object: Some(of.id.to_string()),
            outcome: Outcome::Observed,
            detail,
        }
    }
}

pub(crate) fn bytes(captured: Captured) -> SnapshotBytes {
    SnapshotBytes { stored: captured.stored_bytes, memory: captured.memory_bytes }
}

pub(crate) fn not_ready(snapshot: &Snapshot) -> Error {
    let why = format!("snapshot {} is still being made", snapshot.id);
    Error::conflict(ConflictCode::SnapshotNotReady, why)
}

pub(crate) fn busy(kind: Kind) -> Error {
    let why = format!("the sandbox is being {}; try again when that is over", kind.being());
    Error::conflict(ConflictCode::SandboxBusy, why)
}

/// What a caller can do about a capture that failed.
pub(crate) fn from_capture(error: HostError) -> Error {
    match error {
        HostError::Backend(BackendError::Unsupported(why)) => {
            Error::conflict(ConflictCode::PauseUnsupported, why)
        }
        HostError::Backend(BackendError::NotFound) => Error::not_running("the sandbox has ended"),
        HostError::Backend(error) => {
            let mut detail = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                detail = format!("{detail}: {cause}");
                source = cause.source();
            }
            Error::CaptureFailed { detail }
        }
        HostError::Busy => busy(Kind::Copy),
        error => from_host(error),
    }
}
