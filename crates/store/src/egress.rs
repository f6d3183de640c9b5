//! What sandboxes may reach, and what the gateway decided about it.
//!
//! The rules are columns of the sandbox, changed by compare-and-set on a number
//! of their own, so that two changes at once cannot be mixed. The log is kept for
//! a while and pruned; it is no part of the audit log.

use domain::{
    allow::Entry,
    id::{OrganizationId, SandboxId, SessionId},
    mode::EgressMode,
    time::Timestamp,
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sandboxes::Moved,
    sql::{Row, values},
};

/// The rules of a sandbox, beside its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The list as it was asked for: entries and names of presets.
    pub allow: Vec<String>,
    /// The same with presets written out.
    pub entries: Vec<Entry>,
    /// Grows with every change of mode, list or sessions.
    pub generation: i64,
}

impl Default for Egress {
    /// Nothing is listed.
    fn default() -> Self {
        Self { allow: Vec::new(), entries: Vec::new(), generation: 1 }
    }
}

/// One decision of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressLine {
    /// When.
    pub time: Timestamp,
    /// Which sandbox asked.
    pub sandbox: SandboxId,
    /// Which of its sessions.
    pub session: Option<SessionId>,
    /// The account that asked.
    pub uid: Option<u32>,
    /// Where it came in.
    pub front: String,
    /// Whereto.
    pub destination: String,
    /// The rule that decided.
    pub rule: String,
    /// `allowed`, or the code of the refusal.
    pub outcome: String,
    /// Bytes from the sandbox.
    pub bytes_out: u64,
    /// Bytes to it.
    pub bytes_in: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// How many lines of the sandbox were left out before this one.
    pub dropped: u64,
}

/// Which lines to read.
#[derive(Clone, Debug)]
pub struct EgressFilter {
    /// Whose.
    pub organization: OrganizationId,
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most so many.
    pub limit: u32,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT sequence, sandbox, session, uid, time, front, destination, rule, outcome, \
             bytes_out, bytes_in, duration_ms, dropped FROM egress_log \
             WHERE organization = $1 AND ($2 = '' OR sandbox = $2) AND ",
            $rest
        )
    };
}

impl Store {
    /// Changes the rules of a live sandbox, if they are still of generation `was`.
    pub async fn set_egress(
        &self,
        id: &SandboxId,
        was: i64,
        mode: EgressMode,
        egress: &Egress,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let changed = tx
            .execute(
                "UPDATE sandboxes SET network = $3, egress_allow = $4, egress_entries = $5, \
                 egress_generation = $6, generation = generation + 1 \
                 WHERE id = $1 AND egress_generation = $2 AND intent IS NULL \
                 AND phase IN ('provisioning', 'running', 'sleeping', 'paused')",
                values![
                    id.as_str(),
                    was,
                    mode.as_str(),
                    serde_json::json!(egress.allow).to_string(),
                    serde_json::json!(egress.entries).to_string(),
                    egress.generation,
                ],
            )
            .await?;
        if changed == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// Adds lines, all or none. Those of a sandbox that is not on record are left
    /// out: only what we made can be in the log.
    pub async fn append_egress(&self, lines: &[EgressLine]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for line in lines {
            tx.execute(
                "INSERT INTO egress_log (organization, sandbox, session, uid, time, front, \
                 destination, rule, outcome, bytes_out, bytes_in, duration_ms, dropped) \
                 SELECT organization, id, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 \
                 FROM sandboxes WHERE id = $1",
                values![
                    line.sandbox.as_str(),
                    line.session.as_ref().map(SessionId::as_str),
                    line.uid.map(i64::from),
                    line.time,
                    line.front.as_str(),
                    line.destination.as_str(),
                    line.rule.as_str(),
                    line.outcome.as_str(),
                    number(line.bytes_out),
                    number(line.bytes_in),
                    number(line.duration_ms),
                    number(line.dropped),
                ],
            )
            .await?;
        }
        tx.commit().await
    }

    /// Reads lines with their numbers, newest first, older than `before`.
    pub async fn egress_lines(
        &self,
        filter: &EgressFilter,
        before: Option<i64>,
    ) -> Result<Vec<(i64, EgressLine)>, StoreError> {
        let before = before.unwrap_or(i64::MAX);
        self.egress_rows(select!("sequence < $3 ORDER BY sequence DESC LIMIT $4"), filter, before)
            .await
    }

    /// Reads lines with their numbers, oldest first, newer than `after`.
    pub async fn egress_lines_after(
        &self,
        filter: &EgressFilter,
        after: i64,
    ) -> Result<Vec<(i64, EgressLine)>, StoreError> {
        self.egress_rows(select!("sequence > $3 ORDER BY sequence LIMIT $4"), filter, after).await
    }

    /// The number of the newest line of all.
    pub async fn last_egress(&self) -> Result<i64, StoreError> {
        const LAST: &str = "SELECT COALESCE(MAX(sequence), 0) AS last FROM egress_log";
        match self.fetch_optional(LAST, Vec::new()).await? {
            Some(row) => row.integer("last"),
            None => Ok(0),
        }
    }

    /// Removes lines older than `before`, and all but about the newest `most`.
    pub async fn prune_egress(&self, before: Timestamp, most: u32) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let removed = tx
            .execute(
                "DELETE FROM egress_log WHERE time < $1 \
                 OR sequence <= (SELECT COALESCE(MAX(sequence), 0) FROM egress_log) - $2",
                values![before, i64::from(most)],
            )
            .await?;
        tx.commit().await?;
        Ok(removed)
    }

    async fn egress_rows(
        &self,
        sql: &'static str,
        filter: &EgressFilter,
        place: i64,
    ) -> Result<Vec<(i64, EgressLine)>, StoreError> {
        let sandbox = filter.sandbox.as_ref().map_or("", SandboxId::as_str);
        let values = values![filter.organization.as_str(), sandbox, place, filter.limit];
        let rows = self.fetch_all(sql, values).await?;
        rows.iter().map(|row| Ok((row.integer("sequence")?, read(row)?))).collect()
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn read(row: &Row) -> Result<EgressLine, StoreError> {
    let uid = row.optional_integer("uid")?;
    let corrupt = |_| StoreError::Corrupt { column: "uid", value: format!("{uid:?}") };
    Ok(EgressLine {
        time: Timestamp(row.integer("time")?),
        sandbox: row.parsed("sandbox")?,
        session: row.optional_parsed("session")?,
        uid: uid.map(u32::try_from).transpose().map_err(corrupt)?,
        front: row.text("front")?,
        destination: row.text("destination")?,
        rule: row.text("rule")?,
        outcome: row.text("outcome")?,
        bytes_out: row.number("bytes_out")?,
        bytes_in: row.number("bytes_in")?,
        duration_ms: row.number("duration_ms")?,
        dropped: row.number("dropped")?,
    })
}
