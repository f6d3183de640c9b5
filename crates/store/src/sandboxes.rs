//! Sandboxes: what was asked for, where each one is in its life, how it ended.
//!
//! ```text
//!  provisioning ──► running ◄──► paused
//!        │             │           │
//!        └──────┬──────┴───────────┘
//!               ▼
//!       terminated, failed
//! ```
//!
//! The way into a pause and out of it is in [`rest`].
//!
//! Every transition names the phases it may start from in its `WHERE`, so that of
//! two writers one wins and the other is told [`Moved::No`]. The intent to end a
//! sandbox is a column of its own: it is written before anything is done about
//! it, and a restart finishes what it says.
//!
//! The row has no place for the environment: its values live in the memory of
//! the sandbox only (S27, S28).

pub mod rest;

use std::{collections::BTreeMap, time::Duration};

use domain::{
    ending::{Cause, Ending},
    id::{Alias, OrganizationId, SandboxId, SnapshotId, UserId},
    image::digest::Digest,
    mode::EgressMode,
    phase::Phase,
    region::Region,
    size::{Resources, SizeClass},
    template::TemplateName,
    time::Timestamp,
};

use self::rest::Rest;
use crate::{
    Store,
    audit::{self, AuditLine},
    egress::Egress,
    error::StoreError,
    snapshots::drop_pause,
    sql::{Row, Transaction, values},
};

/// A sandbox as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Names it.
    pub id: SandboxId,
    /// Names it in hostnames.
    pub alias: Alias,
    /// Whose it is.
    pub organization: OrganizationId,
    /// Who made it.
    pub owner: UserId,
    /// Where it runs and where its data stays.
    pub region: Region,
    /// What it started from, as asked.
    pub template: TemplateName,
    /// What it started from, exactly.
    pub image: Digest,
    /// The size that was named; absent where numbers were.
    pub size: Option<SizeClass>,
    /// Its limits.
    pub resources: Resources,
    /// What it can reach.
    pub network: EgressMode,
    /// And what exactly.
    pub egress: Egress,
    /// Where it is in its life.
    pub phase: Phase,
    /// Why it is going to end, from the moment that is decided.
    pub intent: Option<Cause>,
    /// How it ended. Present exactly in a final phase.
    pub ending: Option<Ending>,
    /// Its owner's labels.
    pub metadata: BTreeMap<String, String>,
    /// How long it may run once it does.
    pub timeout: Duration,
    /// When it was asked for.
    pub created: Timestamp,
    /// When its guest answered.
    pub started: Option<Timestamp>,
    /// When it was gone.
    pub ended: Option<Timestamp>,
    /// When it ends by its time limit; while it is paused, when it is given up.
    pub expires: Option<Timestamp>,
    /// When it rests, and what is known while it does.
    pub rest: Rest,
    /// The snapshot that it was started from.
    pub parent: Option<SnapshotId>,
    /// Counts changes of the row.
    pub generation: i64,
}

/// How a request is recognised when it is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of the caller and their key; absent where they gave none.
    pub key: Option<String>,
    /// Of what was asked, without any value of the environment.
    pub request: String,
}

/// What adding a sandbox came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is recorded as `provisioning`.
    New,
    /// The same request was made before and this is its sandbox.
    Repeated(Box<Sandbox>),
    /// The key was used before, for another request.
    KeyReused,
    /// The organisation has as many sandboxes as it may.
    Full {
        /// How many it has.
        in_use: u32,
    },
}

/// Whether a transition took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Moved {
    /// It did, and its audit line is written.
    Yes,
    /// The sandbox was not in a phase that it starts from. Nothing is written.
    No,
}

/// Which sandboxes to list, newest first.
#[derive(Clone, Debug)]
pub struct SandboxFilter {
    /// Whose.
    pub organization: OrganizationId,
    /// Only those in this phase.
    pub phase: Option<Phase>,
    /// At most so many.
    pub limit: u32,
    /// Only those listed after this one.
    pub after: Option<(Timestamp, SandboxId)>,
}

impl Store {
    /// Records a new sandbox, unless the organisation has `most` already.
    ///
    /// Counting and adding are one transaction under a lock of the organisation,
    /// so that any number of simultaneous requests get `most` and no more (B15).
    /// The line is written only with [`Added::New`].
    pub async fn add_sandbox(
        &self,
        sandbox: &Sandbox,
        fingerprint: &Fingerprint,
        most: u32,
        line: &AuditLine,
    ) -> Result<Added, StoreError> {
        let mut tx = self.begin().await?;
        lock(&mut tx, &sandbox.organization).await?;
        if let Some(key) = &fingerprint.key
            && let Some(row) = tx.fetch_optional(BY_KEY, values![key.as_str()]).await?
        {
            if row.text("request")? != fingerprint.request {
                return Ok(Added::KeyReused);
            }
            return Ok(Added::Repeated(Box::new(read(&row)?)));
        }
        let in_use = count(&mut tx, &sandbox.organization).await?;
        if in_use >= most {
            return Ok(Added::Full { in_use });
        }
        insert(&mut tx, sandbox, fingerprint).await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Added::New)
    }

    /// Records the copies of one request, all of them or none: the organisation
    /// may have `most` sandboxes.
    pub async fn add_copies(
        &self,
        copies: &[(Sandbox, Fingerprint)],
        most: u32,
        line: &AuditLine,
    ) -> Result<Added, StoreError> {
        let mut tx = self.begin().await?;
        lock(&mut tx, &line.organization).await?;
        let in_use = count(&mut tx, &line.organization).await?;
        let wanted = u32::try_from(copies.len()).unwrap_or(u32::MAX);
        if most.saturating_sub(in_use) < wanted {
            return Ok(Added::Full { in_use });
        }
        for (copy, fingerprint) in copies {
            insert(&mut tx, copy, fingerprint).await?;
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Added::New)
    }

    /// Finds a sandbox, whoever owns it.
    pub async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>, StoreError> {
        let row = self.fetch_optional(BY_ID, values![id.as_str()]).await?;
        row.as_ref().map(read).transpose()
    }

    /// Lists sandboxes of an organisation, newest first.
    pub async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<Sandbox>, StoreError> {
        let (created, id) = match &filter.after {
            Some((created, id)) => (created.0, id.as_str()),
            None => (i64::MAX, ""),
        };
        let rows = self
            .fetch_all(
                LIST,
                values![
                    filter.organization.as_str(),
                    filter.phase.map_or("", Phase::as_str),
                    created,
                    id,
                    filter.limit,
                ],
            )
            .await?;
        rows.iter().map(read).collect()
    }

    /// Every sandbox that is not in a final phase, of every organisation.
    pub async fn live_sandboxes(&self) -> Result<Vec<Sandbox>, StoreError> {
        let rows = self.fetch_all(LIVE, Vec::new()).await?;
        rows.iter().map(read).collect()
    }

    /// How many sandboxes of an organisation count against its limit.
    pub async fn count_live_sandboxes(
        &self,
        organization: &OrganizationId,
    ) -> Result<u32, StoreError> {
        match self.fetch_optional(COUNT, values![organization.as_str()]).await? {
            Some(row) => row.number("live"),
            None => Ok(0),
        }
    }

    /// `provisioning` → `running`. The time limit counts from `now`.
    ///
    /// A sandbox that is to end does not become running.
    pub async fn mark_running(
        &self,
        id: &SandboxId,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        self.change(
            "UPDATE sandboxes SET phase = 'running', started = $2, expires = $2 + timeout_ms, \
             generation = generation + 1 \
             WHERE id = $1 AND phase = 'provisioning' AND intent IS NULL",
            values![id.as_str(), now],
            line,
        )
        .await
    }

    /// Records that a live sandbox is to end, and why; the first reason stays.
    pub async fn mark_ending(
        &self,
        id: &SandboxId,
        cause: Cause,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        self.change(
            "UPDATE sandboxes SET intent = $2, generation = generation + 1 \
             WHERE id = $1 AND phase IN ('provisioning', 'running', 'sleeping', 'paused') \
             AND intent IS NULL",
            values![id.as_str(), cause.as_str()],
            line,
        )
        .await
    }

    /// Any live phase → the final phase of `ending`. The first ending stays. The
    /// snapshot of a pause goes with it, and its key at once.
    pub async fn mark_ended(
        &self,
        id: &SandboxId,
        ending: &Ending,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        let ended = tx
            .execute(
                "UPDATE sandboxes SET phase = $2, cause = $3, detail = $4, ended = $5, \
                 waking = 0, generation = generation + 1 \
                 WHERE id = $1 AND phase IN ('provisioning', 'running', 'sleeping', 'paused')",
                values![
                    id.as_str(),
                    ending.cause.phase().as_str(),
                    ending.cause.as_str(),
                    // Postgres has no NUL in a text.
                    ending.detail.replace('\0', " "),
                    now,
                ],
            )
            .await?;
        if ended == 0 {
            return Ok(Moved::No);
        }
        drop_pause(&mut tx, id).await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }

    /// Moves the time limit of a running sandbox.
    pub async fn set_sandbox_expiry(
        &self,
        id: &SandboxId,
        expires: Timestamp,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        self.change(
            "UPDATE sandboxes SET expires = $2, generation = generation + 1 \
             WHERE id = $1 AND phase = 'running' AND intent IS NULL",
            values![id.as_str(), expires],
            line,
        )
        .await
    }

    /// One compare-and-set and its line.
    async fn change(
        &self,
        sql: &'static str,
        values: Vec<crate::sql::Value>,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        if tx.execute(sql, values).await? == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, alias, organization, owner, region, template, image, size, cpus, \
             memory_mib, disk_mib, processes, network, phase, intent, cause, detail, metadata, \
             timeout_ms, created, started, ended, expires, request, generation, on_timeout, \
             idle_ms, auto_resume, parent, paused, remaining_ms, waking, egress_allow, \
             egress_entries, egress_generation FROM sandboxes ",
            $rest
        )
    };
}

const BY_ID: &str = select!("WHERE id = $1");
const BY_KEY: &str = select!("WHERE idempotency = $1");
const LIVE: &str = select!(
    "WHERE phase IN ('provisioning', 'running', 'sleeping', 'paused') ORDER BY created, id"
);
const LIST: &str = select!(
    "WHERE organization = $1 AND ($2 = '' OR phase = $2) \
     AND (created < $3 OR (created = $3 AND id < $4)) \
     ORDER BY created DESC, id DESC LIMIT $5"
);
/// Those that have a machine, or are about to.
const COUNT: &str = "SELECT COUNT(*) AS live FROM sandboxes WHERE organization = $1 \
     AND (phase IN ('provisioning', 'running') OR waking = 1)";
const RESTING: &str = select!(
    "WHERE phase = 'running' AND intent IS NULL \
     AND (on_timeout = 'pause' OR idle_ms IS NOT NULL) ORDER BY created, id"
);
const OVERDUE: &str = select!(
    "WHERE phase = 'paused' AND waking = 0 AND intent IS NULL AND expires <= $1 \
     ORDER BY expires, id LIMIT 100"
);

/// Makes counting and adding one step. Of two that ask, one waits.
async fn lock(tx: &mut Transaction, organization: &OrganizationId) -> Result<(), StoreError> {
    let sql = "UPDATE organizations SET generation = generation + 1 WHERE id = $1";
    tx.execute(sql, values![organization.as_str()]).await.map(drop)
}

async fn count(tx: &mut Transaction, organization: &OrganizationId) -> Result<u32, StoreError> {
    match tx.fetch_optional(COUNT, values![organization.as_str()]).await? {
        Some(row) => row.number("live"),
        None => Ok(0),
    }
}

async fn insert(
    tx: &mut Transaction,
    sandbox: &Sandbox,
    fingerprint: &Fingerprint,
) -> Result<(), StoreError> {
    let metadata: serde_json::Map<_, _> =
        sandbox.metadata.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    tx.execute(
        "INSERT INTO sandboxes (id, alias, organization, owner, region, template, image, size, \
         cpus, memory_mib, disk_mib, processes, network, phase, metadata, timeout_ms, created, \
         idempotency, request, on_timeout, idle_ms, auto_resume, parent, egress_allow, \
         egress_entries, egress_generation, generation) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'provisioning', $14, \
         $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, 0)",
        values![
            sandbox.id.as_str(),
            sandbox.alias.as_str(),
            sandbox.organization.as_str(),
            sandbox.owner.as_str(),
            sandbox.region.as_str(),
            sandbox.template.as_str(),
            sandbox.image.to_string(),
            sandbox.size.map(SizeClass::as_str),
            u32::from(sandbox.resources.cpus),
            sandbox.resources.memory_mib,
            sandbox.resources.disk_mib,
            sandbox.resources.processes,
            sandbox.network.as_str(),
            serde_json::Value::Object(metadata).to_string(),
            i64::try_from(sandbox.timeout.as_millis()).unwrap_or(i64::MAX),
            sandbox.created,
            fingerprint.key.as_deref(),
            fingerprint.request.as_str(),
            sandbox.rest.on_timeout.as_str(),
            sandbox.rest.idle,
            sandbox.rest.auto_resume,
            sandbox.parent.as_ref().map(SnapshotId::as_str),
            serde_json::json!(sandbox.egress.allow).to_string(),
            serde_json::json!(sandbox.egress.entries).to_string(),
            sandbox.egress.generation,
        ],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<Sandbox, StoreError> {
    let metadata = row.text("metadata")?;
    let ending = match row.optional_parsed::<Cause>("cause")? {
        Some(cause) => Some(Ending::new(cause, row.optional_text("detail")?.unwrap_or_default())),
        None => None,
    };
    Ok(Sandbox {
        id: row.parsed("id")?,
        alias: row.parsed("alias")?,
        organization: row.parsed("organization")?,
        owner: row.parsed("owner")?,
        region: row.parsed("region")?,
        template: row.parsed("template")?,
        image: row.parsed("image")?,
        size: row.optional_parsed("size")?,
        resources: Resources {
            cpus: row.number("cpus")?,
            memory_mib: row.number("memory_mib")?,
            disk_mib: row.number("disk_mib")?,
            processes: row.number("processes")?,
        },
        network: row.parsed("network")?,
        egress: Egress {
            allow: json(row, "egress_allow")?,
            entries: json(row, "egress_entries")?,
            generation: row.integer("egress_generation")?,
        },
        phase: row.parsed("phase")?,
        intent: row.optional_parsed("intent")?,
        ending,
        metadata: serde_json::from_str(&metadata)
            .map_err(|_| StoreError::Corrupt { column: "metadata", value: metadata })?,
        timeout: Duration::from_millis(row.number("timeout_ms")?),
        created: Timestamp(row.integer("created")?),
        started: row.optional_integer("started")?.map(Timestamp),
        ended: row.optional_integer("ended")?.map(Timestamp),
        expires: row.optional_integer("expires")?.map(Timestamp),
        rest: Rest {
            on_timeout: row.parsed("on_timeout")?,
            idle: duration(row, "idle_ms")?,
            auto_resume: row.integer("auto_resume")? != 0,
            paused: row.optional_integer("paused")?.map(Timestamp),
            remaining: duration(row, "remaining_ms")?,
            waking: row.integer("waking")? != 0,
        },
        parent: row.optional_parsed("parent")?,
        generation: row.integer("generation")?,
    })
}

fn duration(row: &Row, column: &'static str) -> Result<Option<Duration>, StoreError> {
    let Some(millis) = row.optional_integer(column)? else { return Ok(None) };
    let corrupt = |_| StoreError::Corrupt { column, value: millis.to_string() };
    Ok(Some(Duration::from_millis(u64::try_from(millis).map_err(corrupt)?)))
}

/// A column that holds JSON of a known shape.
fn json<T: serde::de::DeserializeOwned>(row: &Row, column: &'static str) -> Result<T, StoreError> {
    let value = row.text(column)?;
    serde_json::from_str(&value).map_err(|_| StoreError::Corrupt { column, value })
}
