//! Leases: which sandbox has which volume, in which slot, at which place.
//!
//! A row is written before the machine is touched and removed after it has let
//! go. A row of a sandbox that has ended counts as absent: its machine was
//! removed before that was recorded.

use domain::{
    id::{SandboxId, VolumeId},
    time::Timestamp,
    volume::{AttachmentState, MountPath},
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sandboxes::Moved,
    sql::{Row, Transaction, values},
};

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Of what.
    pub volume: VolumeId,
    /// Who has it.
    pub sandbox: SandboxId,
    /// In which slot of its machine.
    pub slot: u8,
    /// Where it is mounted.
    pub path: MountPath,
    /// How far it has come.
    pub state: AttachmentState,
    /// When it was asked for.
    pub since: Timestamp,
}

/// What asking for a lease came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// It is recorded as `attaching`.
    New(Attachment),
    /// This sandbox has it, at this place.
    Before(Attachment),
    /// A sandbox has it: another one, or this one elsewhere.
    Taken(Attachment),
    /// The volume is not ready, or not there any more.
    NotReady,
    /// The sandbox is not running, or about to end.
    NotRunning,
    /// Another volume of the sandbox is mounted there, above or below.
    PathTaken(Attachment),
    /// Each of the machine's slots holds a volume.
    NoSlot,
}

impl Store {
    /// Asks for the lease on a volume. The line is written only with
    /// [`Attached::New`].
    pub async fn attach_volume(
        &self,
        (volume, sandbox): (&VolumeId, &SandboxId),
        path: &MountPath,
        slots: u8,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Attached, StoreError> {
        let mut tx = self.begin().await?;
        // Both rows are the lock: of two that ask, the second sees the first's.
        let ready = "UPDATE volumes SET generation = generation + 1 \
                     WHERE id = $1 AND state = 'ready'";
        if tx.execute(ready, values![volume.as_str()]).await? == 0 {
            return Ok(Attached::NotReady);
        }
        let running = "UPDATE sandboxes SET generation = generation + 1 \
                       WHERE id = $1 AND phase = 'running' AND intent IS NULL";
        if tx.execute(running, values![sandbox.as_str()]).await? == 0 {
            return Ok(Attached::NotRunning);
        }
        if let Some(lease) = of_volume(&mut tx, volume).await? {
            let same = lease.sandbox == *sandbox
                && lease.path == *path
                && lease.state == AttachmentState::Attached;
            return Ok(if same { Attached::Before(lease) } else { Attached::Taken(lease) });
        }
        let mut free = None;
        for slot in (0..slots).rev() {
            let held = values![sandbox.as_str(), u32::from(slot)];
            match tx.fetch_optional(IN_SLOT, held).await? {
                None => free = Some(slot),
                Some(row) => {
                    let other = read(&row)?;
                    if other.path.overlaps(path) {
                        return Ok(Attached::PathTaken(other));
                    }
                }
            }
        }
        let Some(slot) = free else { return Ok(Attached::NoSlot) };
        // Of a sandbox that has ended.
        tx.execute("DELETE FROM attachments WHERE volume = $1", values![volume.as_str()]).await?;
        tx.execute(
            "INSERT INTO attachments (volume, sandbox, slot, path, state, since) \
             VALUES ($1, $2, $3, $4, 'attaching', $5)",
            values![volume.as_str(), sandbox.as_str(), u32::from(slot), path.as_str(), now],
        )
        .await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Attached::New(Attachment {
            volume: volume.clone(),
            sandbox: sandbox.clone(),
            slot,
            path: path.clone(),
            state: AttachmentState::Attaching,
            since: now,
        }))
    }

    /// Records how far an attachment has come. The line, if any, is written with
    /// it.
    pub async fn move_attachment(
        &self,
        volume: &VolumeId,
        sandbox: &SandboxId,
        state: AttachmentState,
        line: Option<&AuditLine>,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let changed = tx
            .execute(
                "UPDATE attachments SET state = $3 WHERE volume = $1 AND sandbox = $2",
                values![volume.as_str(), sandbox.as_str(), state.as_str()],
            )
            .await?;
        if changed == 0 {
            return Ok(Moved::No);
        }
        if let Some(line) = line {
            audit::append(&mut tx, line).await?;
        }
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// Ends a lease, after the machine has let go of the volume.
    pub async fn remove_attachment(
        &self,
        volume: &VolumeId,
        sandbox: &SandboxId,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.execute(
            "DELETE FROM attachments WHERE volume = $1 AND sandbox = $2",
            values![volume.as_str(), sandbox.as_str()],
        )
        .await?;
        tx.commit().await
    }

    /// The lease on a volume.
    pub async fn attachment(&self, volume: &VolumeId) -> Result<Option<Attachment>, StoreError> {
        let row = self.fetch_optional(OF_VOLUME, values![volume.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// The leases of a sandbox, by slot.
    pub async fn attachments_of(&self, sandbox: &SandboxId) -> Result<Vec<Attachment>, StoreError> {
        let rows = self.fetch_all(OF_SANDBOX, values![sandbox.as_str()]).await?;
        rows.iter().map(read).collect()
    }

    /// Every lease that counts.
    pub async fn attachments(&self) -> Result<Vec<Attachment>, StoreError> {
        self.fetch_all(ALL, Vec::new()).await?.iter().map(read).collect()
    }
}

/// The lease on a volume, inside a transaction.
pub(super) async fn of_volume(
    tx: &mut Transaction,
    volume: &VolumeId,
) -> Result<Option<Attachment>, StoreError> {
    let row = tx.fetch_optional(OF_VOLUME, values![volume.as_str()]).await?;
    row.as_ref().map(read).transpose()
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT a.volume, a.sandbox, a.slot, a.path, a.state, a.since FROM attachments a \
             JOIN sandboxes s ON s.id = a.sandbox \
             WHERE s.phase IN ('provisioning', 'running', 'sleeping', 'paused') ",
            $rest
        )
    };
}

const OF_VOLUME: &str = select!("AND a.volume = $1");
const OF_SANDBOX: &str = select!("AND a.sandbox = $1 ORDER BY a.slot");
const IN_SLOT: &str = select!("AND a.sandbox = $1 AND a.slot = $2");
const ALL: &str = select!("ORDER BY a.volume");

fn read(row: &Row) -> Result<Attachment, StoreError> {
    Ok(Attachment {
        volume: row.parsed("volume")?,
        sandbox: row.parsed("sandbox")?,
        slot: row.number("slot")?,
        path: row.parsed("path")?,
        state: row.parsed("state")?,
        since: Timestamp(row.integer("since")?),
    })
}
