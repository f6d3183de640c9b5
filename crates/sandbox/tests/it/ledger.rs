//! A ledger that remembers, and refuses when told to.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use domain::{
    ending::Ending,
    id::{SandboxId, SnapshotId},
};
use sandbox::{
    backend::Captured,
    host::{Host, Ledger, LedgerError, Recorded},
};
use testkit::{fake_backend::FakeBackend, fixtures};

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) lines: Mutex<Vec<(SandboxId, String)>>,
    pub(crate) closed: AtomicBool,
    /// Contradicts what it is told.
    pub(crate) contrary: AtomicBool,
}

impl Book {
    pub(crate) fn of(&self, id: &SandboxId) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(of, _)| of == id).map(|(_, line)| line.clone()).collect()
    }

    fn weigh(&self, id: &SandboxId, line: &str) -> Result<Recorded, LedgerError> {
        if self.contrary.load(Ordering::Relaxed) {
            return Ok(Recorded::No("it is to end".into()));
        }
        self.write(id, line.into()).map(|()| Recorded::Yes)
    }

    fn write(&self, id: &SandboxId, line: String) -> Result<(), LedgerError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err("the store is away".into());
        }
        self.lines.lock().unwrap().push((id.clone(), line));
        Ok(())
    }
}

#[async_trait]
impl Ledger for Book {
    async fn running(&self, id: &SandboxId) -> Result<(), LedgerError> {
        self.write(id, "running".into())
    }

    async fn ended(&self, id: &SandboxId, ending: &Ending) -> Result<(), LedgerError> {
        self.write(id, format!("{}: {}", ending.cause.as_str(), ending.detail))
    }

    async fn paused(
        &self,
        id: &SandboxId,
        _: &SnapshotId,
        _: Captured,
    ) -> Result<Recorded, LedgerError> {
        self.weigh(id, "paused")
    }

    async fn resumed(&self, id: &SandboxId) -> Result<Recorded, LedgerError> {
        self.weigh(id, "resumed")
    }
}

/// A host over a fake backend, with the book it writes.
pub(crate) fn host() -> (Host, Arc<FakeBackend>, Arc<Book>) {
    let backend = Arc::new(FakeBackend::default());
    let book = Arc::new(Book::default());
    let host = Host::new(backend.clone(), book.clone(), fixtures::sources());
    (host, backend, book)
}
