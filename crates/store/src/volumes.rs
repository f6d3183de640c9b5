//! Volumes: what there is, and who has which lease.
//!
//! ```text
//!  making ──► ready ──► deleting ──► no row
//!     │                    ▲
//!     └────► failed ───────┘
//! ```
//!
//! Intent is on record before anything is done: a volume has a row before it has
//! a file, and loses its file before its row. An [`Attachment`] is a lease: a
//! volume has at most one, it is kept while its sandbox is paused, and it counts
//! only as long as its sandbox has not ended.

use domain::{
    id::{CheckpointId, OrganizationId, UserId, VolumeId},
    region::Region,
    time::Timestamp,
    volume::{KeptState, VolumeName, VolumeSize},
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sandboxes::Moved,
    sql::{Row, Transaction, values},
};

mod attachments;

pub use attachments::{Attached, Attachment};

/// A volume as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Names it.
    pub id: VolumeId,
    /// Whose it is.
    pub organization: OrganizationId,
    /// Who made it.
    pub owner: UserId,
    /// Where it and its checkpoints stay.
    pub region: Region,
    /// Names it for people.
    pub name: VolumeName,
    /// How large it is.
    pub size: VolumeSize,
    /// Where it is in its life.
    pub state: KeptState,
    /// Why it could not be made.
    pub detail: Option<String>,
    /// The checkpoint that it was restored from.
    pub source: Option<CheckpointId>,
    /// When it was asked for.
    pub created: Timestamp,
}

/// What adding a volume came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeAdded {
    /// It is recorded as `making`.
    New,
    /// The organisation has a volume of that name.
    NameTaken,
    /// Together they would be larger than the organisation's volumes may be.
    Full {
        /// How much it has, in MiB.
        in_use_mib: u64,
    },
    /// What it was to be restored from is not there any more.
    SourceGone,
}

/// What beginning to delete a volume came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deleting {
    /// It is recorded as `deleting`.
    Begun,
    /// A sandbox has its lease.
    Attached(Box<Attachment>),
    /// A checkpoint or a restore is under way.
    Busy,
    /// There is none.
    Gone,
}

impl Store {
    /// Records a new volume, unless its organisation's volumes would be larger
    /// than `most_mib` together. The line is written only with
    /// [`VolumeAdded::New`].
    pub async fn add_volume(
        &self,
        volume: &Volume,
        most_mib: u64,
        line: &AuditLine,
    ) -> Result<VolumeAdded, StoreError> {
        let mut tx = self.begin().await?;
        // The lock under which names and sizes are compared.
        tx.execute(
            "UPDATE organizations SET generation = generation + 1 WHERE id = $1",
            values![volume.organization.as_str()],
        )
        .await?;
        let name = values![volume.organization.as_str(), volume.name.as_str()];
        if tx.fetch_optional(BY_NAME, name).await?.is_some() {
            return Ok(VolumeAdded::NameTaken);
        }
        let in_use = tx.fetch_optional(SUM, values![volume.organization.as_str()]).await?;
        let in_use_mib = in_use.map_or(Ok(0), |row| row.number("mib"))?;
        if in_use_mib + u64::from(volume.size.as_mib()) > most_mib {
            return Ok(VolumeAdded::Full { in_use_mib });
        }
        if let Some(source) = &volume.source {
            // Neither the checkpoint nor its volume can go while this is made.
            for sql in [HOLD_CHECKPOINT, HOLD_ORIGIN] {
                if tx.execute(sql, values![source.as_str()]).await? == 0 {
                    return Ok(VolumeAdded::SourceGone);
                }
            }
        }
        insert(&mut tx, volume).await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(VolumeAdded::New)
    }

    /// Finds a volume, whoever owns it.
    pub async fn volume(&self, id: &VolumeId) -> Result<Option<Volume>, StoreError> {
        let row = self.fetch_optional(BY_ID, values![id.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// Finds an organisation's volume by its name.
    pub async fn volume_named(
        &self,
        organization: &OrganizationId,
        name: &VolumeName,
    ) -> Result<Option<Volume>, StoreError> {
        let row =
            self.fetch_optional(BY_NAME, values![organization.as_str(), name.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// An organisation's volumes by name.
    pub async fn volumes(&self, organization: &OrganizationId) -> Result<Vec<Volume>, StoreError> {
        let rows = self.fetch_all(LIST, values![organization.as_str()]).await?;
        rows.iter().map(read).collect()
    }

    /// Every volume of every organisation.
    pub async fn all_volumes(&self) -> Result<Vec<Volume>, StoreError> {
        self.fetch_all(ALL, Vec::new()).await?.iter().map(read).collect()
    }

    /// `making` → `ready`, or → `failed` with the reason.
    pub async fn settle_volume(
        &self,
        id: &VolumeId,
        failed: Option<&str>,
    ) -> Result<Moved, StoreError> {
        let state = if failed.is_some() { KeptState::Failed } else { KeptState::Ready };
        let mut tx = self.begin().await?;
        let changed = tx
            .execute(
                "UPDATE volumes SET state = $2, detail = $3, generation = generation + 1 \
                 WHERE id = $1 AND state = 'making'",
                values![id.as_str(), state.as_str(), failed],
            )
            .await?;
        tx.commit().await?;
        Ok(if changed == 0 { Moved::No } else { Moved::Yes })
    }

    /// Begins to delete a volume: from here on nobody gets it, and whoever finds
    /// it finishes. One whose deletion began is [`Deleting::Begun`] again.
    pub async fn begin_delete_volume(
        &self,
        id: &VolumeId,
        line: &AuditLine,
    ) -> Result<Deleting, StoreError> {
        let mut tx = self.begin().await?;
        let changed = tx
            .execute(
                "UPDATE volumes SET state = 'deleting', generation = generation + 1 \
                 WHERE id = $1 AND state IN ('ready', 'failed', 'deleting')",
                values![id.as_str()],
            )
            .await?;
        if changed == 0 {
            let known = tx.fetch_optional(BY_ID, values![id.as_str()]).await?.is_some();
            return Ok(if known { Deleting::Busy } else { Deleting::Gone });
        }
        if let Some(lease) = attachments::of_volume(&mut tx, id).await? {
            return Ok(Deleting::Attached(Box::new(lease)));
        }
        let restoring = tx.fetch_optional(RESTORING, values![id.as_str()]).await?;
        if restoring.is_some() {
            return Ok(Deleting::Busy);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Deleting::Begun)
    }

    /// Removes the row of a volume that could not be made and left nothing.
    pub async fn drop_failed_volume(&self, id: &VolumeId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let sql = "DELETE FROM volumes WHERE id = $1 AND state = 'failed'";
        tx.execute(sql, values![id.as_str()]).await?;
        tx.commit().await
    }

    /// Removes the rows of a volume that is being deleted, once nothing of it
    /// is left.
    pub async fn remove_volume(&self, id: &VolumeId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for sql in [
            "DELETE FROM attachments WHERE volume = $1",
            "DELETE FROM checkpoints WHERE volume = $1",
            "DELETE FROM volumes WHERE id = $1 AND state = 'deleting'",
        ] {
            tx.execute(sql, values![id.as_str()]).await?;
        }
        tx.commit().await
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, organization, owner, region, name, size_mib, state, detail, source, \
             created FROM volumes ",
            $rest
        )
    };
}

const BY_ID: &str = select!("WHERE id = $1");
const BY_NAME: &str = select!("WHERE organization = $1 AND name = $2");
const LIST: &str = select!("WHERE organization = $1 ORDER BY name");
const ALL: &str = select!("ORDER BY id");
const SUM: &str =
    "SELECT COALESCE(CAST(SUM(size_mib) AS BIGINT), 0) AS mib FROM volumes WHERE organization = $1";
const HOLD_CHECKPOINT: &str =
    "UPDATE checkpoints SET finished = finished WHERE id = $1 AND state = 'ready'";
const HOLD_ORIGIN: &str = "UPDATE volumes SET generation = generation + 1 \
     WHERE id = (SELECT volume FROM checkpoints WHERE id = $1) AND state <> 'deleting'";
/// Something that is being made of this volume's data.
const RESTORING: &str = "SELECT id FROM checkpoints WHERE volume = $1 AND state = 'making' \
     UNION ALL SELECT id FROM volumes WHERE state = 'making' \
     AND source IN (SELECT id FROM checkpoints WHERE volume = $1) LIMIT 1";

async fn insert(tx: &mut Transaction, volume: &Volume) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO volumes (id, organization, owner, region, name, size_mib, state, source, \
         created, generation) VALUES ($1, $2, $3, $4, $5, $6, 'making', $7, $8, 0)",
        values![
            volume.id.as_str(),
            volume.organization.as_str(),
            volume.owner.as_str(),
            volume.region.as_str(),
            volume.name.as_str(),
            volume.size.as_mib(),
            volume.source.as_ref().map(CheckpointId::as_str),
            volume.created,
        ],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<Volume, StoreError> {
    let size = VolumeSize::mib(row.number("size_mib")?);
    Ok(Volume {
        id: row.parsed("id")?,
        organization: row.parsed("organization")?,
        owner: row.parsed("owner")?,
        region: row.parsed("region")?,
        name: row.parsed("name")?,
        size: size.map_err(|_| StoreError::Corrupt { column: "size_mib", value: String::new() })?,
        state: row.parsed("state")?,
        detail: row.optional_text("detail")?,
        source: row.optional_parsed("source")?,
        created: Timestamp(row.integer("created")?),
    })
}
