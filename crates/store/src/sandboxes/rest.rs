//! Sandboxes that rest: paused, and on their way in and out of that.
//!
//! ```text
//!  running ──► paused ──► running
//!                │  ▲
//!                ▼  │
//!              waking: takes a place among those that run
//! ```
//!
//! What a pause leaves is one transaction: a snapshot that is whole, a phase,
//! and the time that is left. What a resume leaves is another, in which the key
//! of that snapshot is gone. So at every moment a sandbox has exactly one of a
//! machine and a snapshot that counts.

use std::time::Duration;

use domain::{
    id::{OrganizationId, SandboxId, SnapshotId},
    snapshot::OnTimeout,
    time::Timestamp,
};

use super::{Moved, Sandbox, read};
use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    snapshots::{SnapshotBytes, drop_pause, ready},
    sql::values,
};

/// When a sandbox rests, and what is known while it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// What happens at its time limit.
    pub on_timeout: OnTimeout,
    /// It is paused after so long without use.
    pub idle: Option<Duration>,
    /// Whether its next use resumes it.
    pub auto_resume: bool,
    /// Since when it is paused.
    pub paused: Option<Timestamp>,
    /// What is left of its time while it is.
    pub remaining: Option<Duration>,
    /// Whether it is being resumed.
    pub waking: bool,
}

/// Whether a resume may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It has a place, and its line is written.
    Begun,
    /// It is not paused, is being resumed already, or is to end.
    No,
    /// The organisation has as many running sandboxes as it may.
    Full {
        /// How many it has.
        in_use: u32,
    },
}

impl Store {
    /// `running` → `paused`, with the snapshot that became whole.
    ///
    /// Its time stands still: what is left of it is kept. One whose time had run
    /// out gets all of it again. Until `kept` it can be resumed.
    pub async fn mark_paused(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        bytes: SnapshotBytes,
        (now, kept): (Timestamp, Timestamp),
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let paused = tx
            .execute(
                "UPDATE sandboxes SET phase = 'paused', paused = $2, expires = $3, \
                 remaining_ms = CASE WHEN expires > $2 THEN expires - $2 ELSE timeout_ms END, \
                 generation = generation + 1 \
                 WHERE id = $1 AND phase = 'running' AND intent IS NULL",
                values![id.as_str(), now, kept],
            )
            .await?;
        if paused == 0 || ready(&mut tx, snapshot, bytes, Some(kept)).await? == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// Gives a paused sandbox a place among those that run, unless the
    /// organisation has `most` already. With `remaining` it gets that much time.
    pub async fn begin_waking(
        &self,
        sandbox: &Sandbox,
        remaining: Option<Duration>,
        most: u32,
        line: &AuditLine,
    ) -> Result<Woken, StoreError> {
        let mut tx = self.begin().await?;
        super::lock(&mut tx, &sandbox.organization).await?;
        let in_use = super::count(&mut tx, &sandbox.organization).await?;
        if in_use >= most {
            return Ok(Woken::Full { in_use });
        }
        let begun = tx
            .execute(
                "UPDATE sandboxes SET waking = 1, remaining_ms = COALESCE($2, remaining_ms), \
                 generation = generation + 1 \
                 WHERE id = $1 AND phase = 'paused' AND waking = 0 AND intent IS NULL",
                values![sandbox.id.as_str(), remaining],
            )
            .await?;
        if begun == 0 {
            return Ok(Woken::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Woken::Begun)
    }

    /// `paused` → `running`. The time that was left counts from `now`, and the
    /// key of the snapshot is gone.
    pub async fn mark_resumed(
        &self,
        id: &SandboxId,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let resumed = tx
            .execute(
                "UPDATE sandboxes SET phase = 'running', expires = $2 + remaining_ms, \
                 paused = NULL, remaining_ms = NULL, waking = 0, generation = generation + 1 \
                 WHERE id = $1 AND phase = 'paused' AND waking = 1 AND intent IS NULL",
                values![id.as_str(), now],
            )
            .await?;
        if resumed == 0 {
            return Ok(Moved::No);
        }
        drop_pause(&mut tx, id).await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// A resume came to nothing: the sandbox is as paused as it was.
    pub async fn end_waking(&self, id: &SandboxId, line: &AuditLine) -> Result<Moved, StoreError> {
        self.change(
            "UPDATE sandboxes SET waking = 0, generation = generation + 1 \
             WHERE id = $1 AND phase = 'paused' AND waking = 1",
            values![id.as_str()],
            line,
        )
        .await
    }

    /// Running sandboxes that are to be paused by themselves one day.
    pub async fn resting_sandboxes(&self) -> Result<Vec<Sandbox>, StoreError> {
        let rows = self.fetch_all(super::RESTING, Vec::new()).await?;
        rows.iter().map(read).collect()
    }

    /// Paused sandboxes that have been kept for long enough.
    pub async fn overdue_sandboxes(&self, now: Timestamp) -> Result<Vec<Sandbox>, StoreError> {
        let rows = self.fetch_all(super::OVERDUE, values![now]).await?;
        rows.iter().map(read).collect()
    }

    /// How many paused sandboxes an organisation has.
    pub async fn count_paused_sandboxes(
        &self,
        organization: &OrganizationId,
    ) -> Result<u32, StoreError> {
        let sql = "SELECT COUNT(*) AS paused FROM sandboxes \
                   WHERE organization = $1 AND phase = 'paused'";
        match self.fetch_optional(sql, values![organization.as_str()]).await? {
            Some(row) => row.number("paused"),
            None => Ok(0),
        }
    }
}
