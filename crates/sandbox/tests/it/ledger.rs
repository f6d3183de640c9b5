//! A ledger that remembers, and refuses when told to.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use domain::{ending::Ending, id::SandboxId};
use sandbox::host::{Host, Ledger, LedgerError};
use testkit::{fake_backend::FakeBackend, fixtures};

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) lines: Mutex<Vec<(SandboxId, String)>>,
    pub(crate) closed: AtomicBool,
}

impl Book {
    pub(crate) fn of(&self, id: &SandboxId) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(of, _)| of == id).map(|(_, line)| line.clone()).collect()
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
}

/// A host over a fake backend, with the book it writes.
pub(crate) fn host() -> (Host, Arc<FakeBackend>, Arc<Book>) {
    let backend = Arc::new(FakeBackend::default());
    let book = Arc::new(Book::default());
    let host = Host::new(backend.clone(), book.clone(), fixtures::sources());
    (host, backend, book)
}
