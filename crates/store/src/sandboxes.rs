//! Sandboxes: what was asked for, where each one is in its life, how it ended.
//!
//! ```text
//!  provisioning ──► running
//!        │             │
//!        └──────┬──────┘
//!               ▼
//!       terminated, failed
//! ```
//!
//! Every transition names the phases it may start from in its `WHERE`, so that of
//! two writers one wins and the other is told [`Moved::No`]. The intent to end a
//! sandbox is a column of its own: it is written before anything is done about
//! it, and a restart finishes what it says.
//!
//! The row has no place for the environment: its values live in the memory of
//! the sandbox only (S27, S28).

use std::{collections::BTreeMap, time::Duration};

use domain::{
    ending::{Cause, Ending},
    id::{Alias, OrganizationId, SandboxId, UserId},
    image::digest::Digest,
    mode::EgressMode,
    phase::Phase,
    region::Region,
    size::{Resources, SizeClass},
    template::TemplateName,
    time::Timestamp,
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
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
    /// When it ends by its time limit.
    pub expires: Option<Timestamp>,
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
        tx.execute(
            "UPDATE organizations SET generation = generation + 1 WHERE id = $1",
            values![sandbox.organization.as_str()],
        )
        .await?;
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

    /// Any live phase → the final phase of `ending`. The first ending stays.
    pub async fn mark_ended(
        &self,
        id: &SandboxId,
        ending: &Ending,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        self.change(
            "UPDATE sandboxes SET phase = $2, cause = $3, detail = $4, ended = $5, \
             generation = generation + 1 \
             WHERE id = $1 AND phase IN ('provisioning', 'running', 'sleeping', 'paused')",
            values![
                id.as_str(),
                ending.cause.phase().as_str(),
                ending.cause.as_str(),
                // Postgres has no NUL in a text.
                ending.detail.replace('\0', " "),
                now,
            ],
            line,
        )
        .await
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
             timeout_ms, created, started, ended, expires, request, generation FROM sandboxes ",
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
const COUNT: &str = "SELECT COUNT(*) AS live FROM sandboxes WHERE organization = $1 \
     AND phase IN ('provisioning', 'running', 'sleeping', 'paused')";

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
         idempotency, request, generation) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'provisioning', $14, \
         $15, $16, $17, $18, 0)",
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
        network: network(row.text("network")?)?,
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
        generation: row.integer("generation")?,
    })
}

fn network(word: String) -> Result<EgressMode, StoreError> {
    use EgressMode::{Brokered, Mediated, Off, Open, Restricted};
    [Off, Brokered, Restricted, Mediated, Open]
        .into_iter()
        .find(|mode| mode.as_str() == word)
        .ok_or(StoreError::Corrupt { column: "network", value: word })
}
