//! Checkpoints of volumes: which there are, and how large.
//!
//! The data is in [`crate::objects`]; a row holds the digest of the manifest
//! there, so that an object store can lose a checkpoint and cannot change one.

use domain::{
    id::{CheckpointId, OrganizationId, VolumeId},
    image::digest::Digest,
    region::Region,
    time::Timestamp,
    volume::{KeptState, VolumeSize},
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sandboxes::Moved,
    sql::{Row, values},
};

/// A checkpoint as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Names it.
    pub id: CheckpointId,
    /// Of which volume.
    pub volume: VolumeId,
    /// Whose it is.
    pub organization: OrganizationId,
    /// Where its data stays.
    pub region: Region,
    /// How large the volume is.
    pub size: VolumeSize,
    /// Where it is in its life.
    pub state: KeptState,
    /// Why it could not be made.
    pub detail: Option<String>,
    /// How much a restore reads.
    pub data_bytes: u64,
    /// How much of that no earlier checkpoint had kept.
    pub stored_bytes: u64,
    /// Digest of its manifest, once it is whole.
    pub manifest: Option<Digest>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it was whole.
    pub finished: Option<Timestamp>,
}

/// What making a checkpoint came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How much a restore reads.
    pub data_bytes: u64,
    /// How much of that was uploaded.
    pub stored_bytes: u64,
    /// Digest of its manifest.
    pub manifest: Digest,
}

impl Store {
    /// Records a new checkpoint as `making`, if the volume is ready and none
    /// other is being made of it.
    pub async fn add_checkpoint(
        &self,
        checkpoint: &Checkpoint,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let ready = "UPDATE volumes SET generation = generation + 1 \
                     WHERE id = $1 AND state = 'ready'";
        if tx.execute(ready, values![checkpoint.volume.as_str()]).await? == 0 {
            return Ok(Moved::No);
        }
        let making = "SELECT id FROM checkpoints WHERE volume = $1 AND state = 'making'";
        if tx.fetch_optional(making, values![checkpoint.volume.as_str()]).await?.is_some() {
            return Ok(Moved::No);
        }
        tx.execute(
            "INSERT INTO checkpoints (id, volume, organization, region, size_mib, state, \
             data_bytes, stored_bytes, created) VALUES ($1, $2, $3, $4, $5, 'making', 0, 0, $6)",
            values![
                checkpoint.id.as_str(),
                checkpoint.volume.as_str(),
                checkpoint.organization.as_str(),
                checkpoint.region.as_str(),
                checkpoint.size.as_mib(),
                checkpoint.created,
            ],
        )
        .await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// `making` → `ready`.
    pub async fn finish_checkpoint(
        &self,
        id: &CheckpointId,
        finished: &Finished,
        now: Timestamp,
    ) -> Result<Moved, StoreError> {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.move_checkpoint(
            "UPDATE checkpoints SET state = 'ready', data_bytes = $2, stored_bytes = $3, \
             manifest = $4, finished = $5 WHERE id = $1 AND state = 'making'",
            values![
                id.as_str(),
                bytes(finished.data_bytes),
                bytes(finished.stored_bytes),
                finished.manifest.to_string(),
                now,
            ],
            None,
        )
        .await
    }

    /// `making` → `failed`.
    pub async fn fail_checkpoint(
        &self,
        id: &CheckpointId,
        detail: &str,
    ) -> Result<Moved, StoreError> {
        self.move_checkpoint(
            "UPDATE checkpoints SET state = 'failed', detail = $2 \
             WHERE id = $1 AND state = 'making'",
            values![id.as_str(), detail],
            None,
        )
        .await
    }

    /// `ready` or `failed` → `deleting`, unless a volume is being restored from
    /// it. One whose deletion began moves again.
    pub async fn begin_delete_checkpoint(
        &self,
        id: &CheckpointId,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        self.move_checkpoint(
            "UPDATE checkpoints SET state = 'deleting' \
             WHERE id = $1 AND state IN ('ready', 'failed', 'deleting') AND NOT EXISTS \
             (SELECT 1 FROM volumes WHERE state = 'making' AND source = $1)",
            values![id.as_str()],
            Some(line),
        )
        .await
    }

    /// Removes the row of a checkpoint, once nothing of it is left.
    pub async fn remove_checkpoint(&self, id: &CheckpointId) -> Result<(), StoreError> {
        let sql = "DELETE FROM checkpoints WHERE id = $1 AND state = 'deleting'";
        self.move_checkpoint(sql, values![id.as_str()], None).await.map(drop)
    }

    /// Finds a checkpoint, whoever owns it.
    pub async fn checkpoint(&self, id: &CheckpointId) -> Result<Option<Checkpoint>, StoreError> {
        let row = self.fetch_optional(BY_ID, values![id.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// The checkpoints of a volume, newest first.
    pub async fn checkpoints(&self, volume: &VolumeId) -> Result<Vec<Checkpoint>, StoreError> {
        let rows = self.fetch_all(OF_VOLUME, values![volume.as_str()]).await?;
        rows.iter().map(read).collect()
    }

    /// Every checkpoint that is neither ready nor failed.
    pub async fn unsettled_checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        self.fetch_all(UNSETTLED, Vec::new()).await?.iter().map(read).collect()
    }

    async fn move_checkpoint(
        &self,
        sql: &'static str,
        values: Vec<crate::sql::Value>,
        line: Option<&AuditLine>,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        if tx.execute(sql, values).await? == 0 {
            return Ok(Moved::No);
        }
        if let Some(line) = line {
            audit::append(&mut tx, line).await?;
        }
        tx.commit().await?;
        Ok(Moved::Yes)
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, volume, organization, region, size_mib, state, detail, data_bytes, \
             stored_bytes, manifest, created, finished FROM checkpoints ",
            $rest
        )
    };
}

const BY_ID: &str = select!("WHERE id = $1");
const OF_VOLUME: &str = select!("WHERE volume = $1 ORDER BY created DESC, id DESC");
const UNSETTLED: &str = select!("WHERE state IN ('making', 'deleting') ORDER BY id");

fn read(row: &Row) -> Result<Checkpoint, StoreError> {
    let size = VolumeSize::mib(row.number("size_mib")?);
    Ok(Checkpoint {
        id: row.parsed("id")?,
        volume: row.parsed("volume")?,
        organization: row.parsed("organization")?,
        region: row.parsed("region")?,
        size: size.map_err(|_| StoreError::Corrupt { column: "size_mib", value: String::new() })?,
        state: row.parsed("state")?,
        detail: row.optional_text("detail")?,
        data_bytes: row.number("data_bytes")?,
        stored_bytes: row.number("stored_bytes")?,
        manifest: row.optional_parsed("manifest")?,
        created: Timestamp(row.integer("created")?),
        finished: row.optional_integer("finished")?.map(Timestamp),
    })
}
