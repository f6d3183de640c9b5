//! Snapshots: what a sandbox can be started from again.
//!
//! ```text
//!  making ──► ready ──► going ──► (no row)
//!     └───────────────────┘
//! ```
//!
//! The row is there before the files and goes after them, so that whoever finds
//! the one knows to look for the other. On the way to `going` the key is nulled
//! in the same transaction: from then on the files are noise, whatever becomes
//! of them (S49).

use domain::{
    id::{OrganizationId, SandboxId, SnapshotId, UserId},
    image::digest::Digest,
    region::Region,
    size::{Resources, SizeClass},
    snapshot::{SnapshotKey, SnapshotKind, SnapshotName},
    template::TemplateName,
    time::Timestamp,
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sandboxes::Moved,
    sql::{Row, Transaction, values},
};

/// A snapshot as its owner sees it. Its key is asked for apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Names it.
    pub id: SnapshotId,
    /// Whose it is.
    pub organization: OrganizationId,
    /// Who made it.
    pub owner: UserId,
    /// Where it lies.
    pub region: Region,
    /// What it keeps.
    pub kind: SnapshotKind,
    /// What it is for.
    pub purpose: Purpose,
    /// The name it was given.
    pub name: Option<SnapshotName>,
    /// Which sandbox was captured.
    pub sandbox: SandboxId,
    /// What that one started from, as asked.
    pub template: TemplateName,
    /// What that one started from, exactly.
    pub image: Digest,
    /// Its size, where one was named.
    pub size: Option<SizeClass>,
    /// Its limits.
    pub resources: Resources,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// What it takes on disk.
    pub stored_bytes: u64,
    /// How much memory is in it.
    pub memory_bytes: u64,
    /// The snapshot that its sandbox was started from.
    pub parent: Option<SnapshotId>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it is removed by itself.
    pub expires: Option<Timestamp>,
}

/// What a snapshot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A paused sandbox: it goes when that one runs again or ends.
    Pause,
    /// Somebody gave it a name and removes it.
    Named,
    /// The copies of one request: it goes when they run.
    Fork,
    /// A template or a step on the way to one: it goes when neither is.
    Template,
}

/// Where a snapshot is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    /// It is being written.
    Making,
    /// It is whole.
    Ready,
    /// Its key is gone; its files are being removed.
    Going,
}

/// What adding a snapshot came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddedSnapshot {
    /// It is recorded as `making`.
    New,
    /// The sandbox does not run, or is to end.
    NotRunning,
    /// The organisation has one of that name.
    NameTaken,
    /// The organisation has as many of that purpose as it may.
    Full {
        /// How many it has.
        in_use: u32,
    },
}

/// Which snapshots to list, newest first.
#[derive(Clone, Debug)]
pub struct SnapshotFilter {
    /// Whose.
    pub organization: OrganizationId,
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most so many.
    pub limit: u32,
    /// Only those listed after this one.
    pub after: Option<(Timestamp, SnapshotId)>,
}

/// Bytes of a snapshot that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBytes {
    /// On disk.
    pub stored: u64,
    /// Of memory.
    pub memory: u64,
}

impl Purpose {
    const ALL: [Self; 4] = [Self::Pause, Self::Named, Self::Fork, Self::Template];

    /// The word in the store and on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Named => "named",
            Self::Fork => "fork",
            Self::Template => "template",
        }
    }
}

impl SnapshotState {
    const ALL: [Self; 3] = [Self::Making, Self::Ready, Self::Going];

    /// The word in the store and on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Ready => "ready",
            Self::Going => "going",
        }
    }
}

impl Store {
    /// Records a snapshot that is to be made of a running sandbox, with its key,
    /// unless the organisation has `most` of its purpose already.
    ///
    /// Counting and adding are one transaction under a lock of the organisation.
    /// The line is written only with [`AddedSnapshot::New`].
    pub async fn add_snapshot(
        &self,
        snapshot: &Snapshot,
        key: &SnapshotKey,
        most: u32,
        line: &AuditLine,
    ) -> Result<AddedSnapshot, StoreError> {
        let organization = snapshot.organization.as_str();
        let sealed = self.seal(&snapshot.id, key)?;
        let mut tx = self.begin().await?;
        tx.execute(
            "UPDATE organizations SET generation = generation + 1 WHERE id = $1",
            values![organization],
        )
        .await?;
        let running = tx
            .fetch_optional(
                "SELECT id FROM sandboxes WHERE id = $1 AND phase = 'running' AND intent IS NULL",
                values![snapshot.sandbox.as_str()],
            )
            .await?;
        if running.is_none() {
            return Ok(AddedSnapshot::NotRunning);
        }
        if let Some(name) = &snapshot.name {
            let taken = "SELECT id FROM snapshots WHERE organization = $1 AND name = $2";
            if tx.fetch_optional(taken, values![organization, name.as_str()]).await?.is_some() {
                return Ok(AddedSnapshot::NameTaken);
            }
        }
        let counted = tx
            .fetch_optional(
                "SELECT COUNT(*) AS kept FROM snapshots \
                 WHERE organization = $1 AND purpose = $2 AND state <> 'going'",
                values![organization, snapshot.purpose.as_str()],
            )
            .await?;
        let in_use = counted.map_or(Ok(0), |row| row.number("kept"))?;
        if in_use >= most {
            return Ok(AddedSnapshot::Full { in_use });
        }
        insert(&mut tx, snapshot, &sealed).await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(AddedSnapshot::New)
    }

    /// `making` → `ready`.
    pub async fn mark_snapshot_ready(
        &self,
        id: &SnapshotId,
        bytes: SnapshotBytes,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        if ready(&mut tx, id, bytes, None).await? == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// `making` or `ready` → `going`: its key and its name are gone with this.
    pub async fn mark_snapshot_going(
        &self,
        id: &SnapshotId,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let going = "UPDATE snapshots SET state = 'going', sealed_key = NULL, name = NULL \
                     WHERE id = $1 AND state IN ('making', 'ready')";
        if tx.execute(going, values![id.as_str()]).await? == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// `making` → `going`. One that became whole stays.
    pub async fn abandon_snapshot(
        &self,
        id: &SnapshotId,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let abandoned = "UPDATE snapshots SET state = 'going', sealed_key = NULL, name = NULL \
                         WHERE id = $1 AND state = 'making'";
        if tx.execute(abandoned, values![id.as_str()]).await? == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// Removes the row of a snapshot whose files are gone.
    pub async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let gone = "DELETE FROM snapshots WHERE id = $1 AND state = 'going'";
        tx.execute(gone, values![id.as_str()]).await?;
        tx.commit().await
    }

    /// Finds a snapshot, whoever owns it.
    pub async fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, StoreError> {
        let row = self.fetch_optional(BY_ID, values![id.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// Finds a snapshot by the name it was given.
    pub async fn snapshot_by_name(
        &self,
        organization: &OrganizationId,
        name: &SnapshotName,
    ) -> Result<Option<Snapshot>, StoreError> {
        let values = values![organization.as_str(), name.as_str()];
        let row = self.fetch_optional(BY_NAME, values).await?;
        row.as_ref().map(read).transpose()
    }

    /// The snapshot that a paused sandbox goes on from.
    pub async fn pause_of(&self, sandbox: &SandboxId) -> Result<Option<Snapshot>, StoreError> {
        let row = self.fetch_optional(PAUSE_OF, values![sandbox.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// The key of a snapshot that is not going.
    pub async fn snapshot_key(&self, id: &SnapshotId) -> Result<Option<SnapshotKey>, StoreError> {
        let sql = "SELECT sealed_key FROM snapshots WHERE id = $1 AND state <> 'going'";
        let Some(row) = self.fetch_optional(sql, values![id.as_str()]).await? else {
            return Ok(None);
        };
        let Some(sealed) = row.optional_text("sealed_key")? else { return Ok(None) };
        self.opener(id)?.open(id, &sealed).map(Some)
    }

    /// Lists snapshots that somebody named, newest first.
    pub async fn snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<Snapshot>, StoreError> {
        let (created, id) = match &filter.after {
            Some((created, id)) => (created.0, id.as_str()),
            None => (i64::MAX, ""),
        };
        let sandbox = filter.sandbox.as_ref().map_or("", SandboxId::as_str);
        let organization = filter.organization.as_str();
        let values = values![organization, sandbox, created, id, filter.limit];
        let rows = self.fetch_all(LIST, values).await?;
        rows.iter().map(read).collect()
    }

    /// Every snapshot, of every organisation.
    pub async fn all_snapshots(&self) -> Result<Vec<Snapshot>, StoreError> {
        let rows = self.fetch_all(ALL, Vec::new()).await?;
        rows.iter().map(read).collect()
    }

    /// Snapshots whose files are to be removed.
    pub async fn going_snapshots(&self) -> Result<Vec<Snapshot>, StoreError> {
        let rows = self.fetch_all(GOING, Vec::new()).await?;
        rows.iter().map(read).collect()
    }

    /// Named snapshots whose time is over.
    pub async fn expired_snapshots(&self, now: Timestamp) -> Result<Vec<Snapshot>, StoreError> {
        let rows = self.fetch_all(EXPIRED, values![now]).await?;
        rows.iter().map(read).collect()
    }

    fn seal(&self, id: &SnapshotId, key: &SnapshotKey) -> Result<String, StoreError> {
        self.opener(id)?.seal(id, key)
    }

    fn opener(&self, id: &SnapshotId) -> Result<&crate::sealing::Sealing, StoreError> {
        // Without one nothing is sealed, so nothing can be opened either.
        self.sealing().ok_or_else(|| StoreError::Sealed(id.clone()))
    }
}

/// `making` → `ready`, in the transaction of whatever follows from it.
pub(crate) async fn ready(
    tx: &mut Transaction,
    id: &SnapshotId,
    bytes: SnapshotBytes,
    expires: Option<Timestamp>,
) -> Result<u64, StoreError> {
    tx.execute(
        "UPDATE snapshots SET state = 'ready', stored_bytes = $2, memory_bytes = $3, \
         expires = COALESCE($4, expires) WHERE id = $1 AND state = 'making'",
        values![id.as_str(), bytes.stored, bytes.memory, expires],
    )
    .await
}

/// The snapshot of a pause goes, in the transaction of whatever made it useless.
pub(crate) async fn drop_pause(
    tx: &mut Transaction,
    sandbox: &SandboxId,
) -> Result<u64, StoreError> {
    tx.execute(
        "UPDATE snapshots SET state = 'going', sealed_key = NULL \
         WHERE sandbox = $1 AND purpose = 'pause' AND state IN ('making', 'ready')",
        values![sandbox.as_str()],
    )
    .await
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, organization, owner, region, kind, purpose, name, sandbox, template, \
             image, size, cpus, memory_mib, disk_mib, processes, state, stored_bytes, \
             memory_bytes, parent, created, expires FROM snapshots ",
            $rest
        )
    };
}

const BY_ID: &str = select!("WHERE id = $1");
const BY_NAME: &str = select!("WHERE organization = $1 AND name = $2");
const PAUSE_OF: &str = select!("WHERE sandbox = $1 AND purpose = 'pause' AND state = 'ready'");
const ALL: &str = select!("ORDER BY created, id");
const GOING: &str = select!("WHERE state = 'going' ORDER BY created, id LIMIT 100");
const EXPIRED: &str = select!(
    "WHERE purpose = 'named' AND state = 'ready' AND expires <= $1 ORDER BY expires, id LIMIT 100"
);
const LIST: &str = select!(
    "WHERE organization = $1 AND name IS NOT NULL AND ($2 = '' OR sandbox = $2) \
     AND (created < $3 OR (created = $3 AND id < $4)) \
     ORDER BY created DESC, id DESC LIMIT $5"
);

async fn insert(tx: &mut Transaction, snapshot: &Snapshot, sealed: &str) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO snapshots (id, organization, owner, region, kind, purpose, name, sandbox, \
         template, image, size, cpus, memory_mib, disk_mib, processes, state, sealed_key, \
         stored_bytes, memory_bytes, parent, created, expires) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'making', \
         $16, 0, 0, $17, $18, $19)",
        values![
            snapshot.id.as_str(),
            snapshot.organization.as_str(),
            snapshot.owner.as_str(),
            snapshot.region.as_str(),
            snapshot.kind.as_str(),
            snapshot.purpose.as_str(),
            snapshot.name.as_ref().map(SnapshotName::as_str),
            snapshot.sandbox.as_str(),
            snapshot.template.as_str(),
            snapshot.image.to_string(),
            snapshot.size.map(SizeClass::as_str),
            u32::from(snapshot.resources.cpus),
            snapshot.resources.memory_mib,
            snapshot.resources.disk_mib,
            snapshot.resources.processes,
            sealed,
            snapshot.parent.as_ref().map(SnapshotId::as_str),
            snapshot.created,
            snapshot.expires,
        ],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<Snapshot, StoreError> {
    let (purpose, state) = (row.text("purpose")?, row.text("state")?);
    Ok(Snapshot {
        id: row.parsed("id")?,
        organization: row.parsed("organization")?,
        owner: row.parsed("owner")?,
        region: row.parsed("region")?,
        kind: row.parsed("kind")?,
        purpose: Purpose::ALL
            .into_iter()
            .find(|known| known.as_str() == purpose)
            .ok_or(StoreError::Corrupt { column: "purpose", value: purpose })?,
        name: row.optional_parsed("name")?,
        sandbox: row.parsed("sandbox")?,
        template: row.parsed("template")?,
        image: row.parsed("image")?,
        size: row.optional_parsed("size")?,
        resources: Resources {
            cpus: row.number("cpus")?,
            memory_mib: row.number("memory_mib")?,
            disk_mib: row.number("disk_mib")?,
            processes: row.number("processes")?,
        },
        state: SnapshotState::ALL
            .into_iter()
            .find(|known| known.as_str() == state)
            .ok_or(StoreError::Corrupt { column: "state", value: state })?,
        stored_bytes: row.number("stored_bytes")?,
        memory_bytes: row.number("memory_bytes")?,
        parent: row.optional_parsed("parent")?,
        created: Timestamp(row.integer("created")?),
        expires: row.optional_integer("expires")?.map(Timestamp),
    })
}
