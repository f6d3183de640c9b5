//! What drivers report, written down before anyone is told.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use domain::{
    ending::{Cause, Ending},
    id::{AuditId, SandboxId, SnapshotId},
    phase::Phase,
    time::Timestamp,
};
use sandbox::{
    backend::Captured,
    host::{Ledger, LedgerError, Recorded, Sources},
};
use store::{
    Store,
    audit::{AuditLine, Outcome},
    error::StoreError,
    sandboxes::{Moved, Sandbox},
};

use crate::{
    control::{Detail, detail, random},
    egress::Gateway,
    settings::SnapshotLimits,
    snapshots::bytes,
};

/// The store as a ledger of sandboxes.
#[derive(Clone, Debug)]
pub struct StoreLedger {
    store: Store,
    sources: Sources,
    gateway: Option<Arc<dyn Gateway>>,
    retention: Duration,
}

/// Why a fact was not recorded.
#[derive(Debug, thiserror::Error)]
enum Contradiction {
    #[error("no such sandbox is on record")]
    Unknown,
    #[error("it is on record as {0}")]
    Phase(Phase),
    #[error("it is on record as to be removed")]
    Ending,
}

impl StoreLedger {
    /// A ledger over `store`.
    pub fn new(store: Store, sources: Sources) -> Self {
        let retention = SnapshotLimits::default().retention;
        Self { store, sources, gateway: None, retention }
    }

    /// The same, telling the gateway of every end.
    pub fn with_gateway(self, gateway: Option<Arc<dyn Gateway>>) -> Self {
        Self { gateway, ..self }
    }

    /// The same ledger where paused sandboxes are kept for another time.
    pub fn keeping(self, retention: Duration) -> Self {
        Self { retention, ..self }
    }

    /// Records an end; the first one that is recorded stays.
    ///
    /// A wish that was on record before the end is its cause, whatever the driver
    /// saw of it: a sandbox that is removed while it starts did not fail.
    pub(crate) async fn record_ended(
        &self,
        id: &SandboxId,
        ending: &Ending,
    ) -> Result<(), StoreError> {
        let Some(row) = self.store.sandbox(id).await? else { return Ok(()) };
        let ending = match row.intent {
            Some(Cause::Requested) => &crate::sandboxes::requested(),
            Some(_) | None => ending,
        };
        let now = (self.sources.clock)();
        let told = detail([
            ("cause", ending.cause.as_str().into()),
            ("detail", crate::control::clipped(&ending.detail)),
        ]);
        let line = self.line(&row, "sandbox.ended", now, told);
        match self.store.mark_ended(id, ending, now, &line).await? {
            Moved::Yes | Moved::No => {}
        }
        if let Some(gateway) = &self.gateway {
            gateway.forget(id).await;
        }
        Ok(())
    }

    /// What a transition came to. One that was recorded before, by a call whose
    /// answer was lost, counts.
    async fn settled(
        &self,
        id: &SandboxId,
        moved: Moved,
        wanted: Phase,
    ) -> Result<Recorded, LedgerError> {
        if moved == Moved::Yes {
            return Ok(Recorded::Yes);
        }
        Ok(match self.store.sandbox(id).await? {
            Some(row) if row.phase == wanted && row.intent.is_none() => Recorded::Yes,
            Some(row) if row.intent.is_some() => Recorded::No(Contradiction::Ending.to_string()),
            Some(row) => Recorded::No(Contradiction::Phase(row.phase).to_string()),
            None => unknown(),
        })
    }

    fn line(&self, row: &Sandbox, action: &str, now: Timestamp, detail: Detail) -> AuditLine {
        AuditLine {
            id: AuditId::from_random(random(&self.sources)),
            time: now,
            organization: row.organization.clone(),
            user: None,
            token: None,
            action: action.to_owned(),
            object: Some(row.id.to_string()),
            outcome: Outcome::Observed,
            detail,
        }
    }
}

#[async_trait]
impl Ledger for StoreLedger {
    async fn running(&self, id: &SandboxId) -> Result<(), LedgerError> {
        let row = self.store.sandbox(id).await?.ok_or(Contradiction::Unknown)?;
        let now = (self.sources.clock)();
        let line = self.line(&row, "sandbox.running", now, Detail::new());
        if self.store.mark_running(id, now, &line).await? == Moved::Yes {
            return Ok(());
        }
        let row = self.store.sandbox(id).await?.ok_or(Contradiction::Unknown)?;
        match (row.phase, row.intent) {
            // Recorded before, by a call whose answer was lost or before a restart.
            (Phase::Running, None) => Ok(()),
            (Phase::Running | Phase::Provisioning, _) => Err(Contradiction::Ending.into()),
            (phase, _) => Err(Contradiction::Phase(phase).into()),
        }
    }

    async fn ended(&self, id: &SandboxId, ending: &Ending) -> Result<(), LedgerError> {
        Ok(self.record_ended(id, ending).await?)
    }

    async fn paused(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        captured: Captured,
    ) -> Result<Recorded, LedgerError> {
        let Some(row) = self.store.sandbox(id).await? else { return Ok(unknown()) };
        let now = (self.sources.clock)();
        let told = detail([
            ("snapshot", snapshot.as_str().into()),
            ("bytes", captured.stored_bytes.into()),
        ]);
        let line = self.line(&row, "sandbox.paused", now, told);
        let times = (now, now.plus(self.retention));
        let paused = self.store.mark_paused(id, snapshot, bytes(captured), times, &line).await?;
        self.settled(id, paused, Phase::Paused).await
    }

    async fn resumed(&self, id: &SandboxId) -> Result<Recorded, LedgerError> {
        let Some(row) = self.store.sandbox(id).await? else { return Ok(unknown()) };
        let now = (self.sources.clock)();
        let line = self.line(&row, "sandbox.resumed", now, Detail::new());
        let resumed = self.store.mark_resumed(id, now, &line).await?;
        self.settled(id, resumed, Phase::Running).await
    }
}

fn unknown() -> Recorded {
    Recorded::No(Contradiction::Unknown.to_string())
}
