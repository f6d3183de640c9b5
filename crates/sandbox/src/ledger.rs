//! Where facts about sandboxes are recorded, before anyone acts on them.

use std::fmt;

use async_trait::async_trait;
use domain::{
    ending::Ending,
    id::{SandboxId, SnapshotId},
};

use crate::backend::Captured;

/// Why a ledger could not be written. What came of it is unknown.
pub type LedgerError = Box<dyn std::error::Error + Send + Sync>;

/// What came of recording a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is on record.
    Yes,
    /// The record contradicts it, and why. Nothing was written.
    No(String),
}

/// What drivers report to.
///
/// Recording a fact twice is not an error: a driver repeats a call whose answer
/// was lost.
#[async_trait]
pub trait Ledger: fmt::Debug + Send + Sync {
    /// The guest answered.
    async fn running(&self, id: &SandboxId) -> Result<(), LedgerError>;

    /// Nothing of the sandbox is left.
    async fn ended(&self, id: &SandboxId, ending: &Ending) -> Result<(), LedgerError>;

    /// Its snapshot is whole, its machine stands still and may be removed.
    async fn paused(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        captured: Captured,
    ) -> Result<Recorded, LedgerError>;

    /// The guest goes on after a pause.
    async fn resumed(&self, id: &SandboxId) -> Result<Recorded, LedgerError>;
}

/// A ledger for sandboxes that only this process knows.
#[derive(Clone, Copy, Debug)]
pub struct NoLedger;

#[async_trait]
impl Ledger for NoLedger {
    async fn running(&self, _: &SandboxId) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn ended(&self, _: &SandboxId, _: &Ending) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn paused(
        &self,
        _: &SandboxId,
        _: &SnapshotId,
        _: Captured,
    ) -> Result<Recorded, LedgerError> {
        Ok(Recorded::Yes)
    }

    async fn resumed(&self, _: &SandboxId) -> Result<Recorded, LedgerError> {
        Ok(Recorded::Yes)
    }
}
