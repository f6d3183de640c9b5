//! What sandboxes take in sum, by organisation and phase.

use domain::{
    id::{OrganizationId, SandboxId},
    phase::Phase,
};

use crate::{
    Store,
    error::StoreError,
    sandboxes::Fingerprint,
    sql::{Row, values},
};

/// One sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Whose.
    pub organization: OrganizationId,
    /// In which phase.
    pub phase: Phase,
    /// Whether they have a machine, or are about to.
    pub placed: bool,
    /// How many.
    pub sandboxes: u32,
    /// Their processors.
    pub cpus: u64,
    /// Their memory.
    pub memory_mib: u64,
    /// Their writable layers.
    pub disk_mib: u64,
}

impl Store {
    /// The sums over all sandboxes that are not in a final phase.
    pub async fn usage(&self) -> Result<Vec<Usage>, StoreError> {
        let rows = self.fetch_all(SUMS, Vec::new()).await?;
        rows.iter().map(read).collect()
    }

    /// The sandbox that a request with this key made before, whatever it asked.
    pub async fn sandbox_of_key(
        &self,
        fingerprint: &Fingerprint,
    ) -> Result<Option<SandboxId>, StoreError> {
        let Some(key) = &fingerprint.key else { return Ok(None) };
        let sql = "SELECT id FROM sandboxes WHERE idempotency = $1";
        let row = self.fetch_optional(sql, values![key.as_str()]).await?;
        row.map(|row| row.parsed("id")).transpose()
    }
}

/// The casts are for Postgres, where a sum is wider than what it sums.
const SUMS: &str = "SELECT organization, phase, waking, COUNT(*) AS sandboxes, \
     CAST(SUM(cpus) AS BIGINT) AS cpus, CAST(SUM(memory_mib) AS BIGINT) AS memory_mib, \
     CAST(SUM(disk_mib) AS BIGINT) AS disk_mib FROM sandboxes \
     WHERE phase IN ('provisioning', 'running', 'sleeping', 'paused') \
     GROUP BY organization, phase, waking ORDER BY organization, phase, waking";

fn read(row: &Row) -> Result<Usage, StoreError> {
    let phase = row.parsed("phase")?;
    let placed =
        matches!(phase, Phase::Provisioning | Phase::Running) || row.integer("waking")? != 0;
    Ok(Usage {
        organization: row.parsed("organization")?,
        phase,
        placed,
        sandboxes: row.number("sandboxes")?,
        cpus: row.number("cpus")?,
        memory_mib: row.number("memory_mib")?,
        disk_mib: row.number("disk_mib")?,
    })
}
