//! The gateway's records, written into the store.
//!
//! A record is put into a bounded queue and never waited for; what does not fit
//! is counted by sandbox, and the count goes with the next record that does. One
//! task writes them in batches and removes what is too old.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use domain::{
    id::SandboxId,
    time::{Clock, Timestamp},
};
use gateway::journal::{Journal, Record};
use store::{Store, egress::EgressLine};
use tokio::sync::mpsc;

/// Records that wait to be written.
const QUEUE: usize = 4096;
/// Records of one transaction.
const BATCH: usize = 256;
/// How often old lines are removed.
const PRUNING: Duration = Duration::from_secs(600);
/// The most lines that are kept, whatever their age.
const MOST: u32 = 1_000_000;

/// The store as a journal.
pub struct StoreJournal {
    queue: mpsc::Sender<Record>,
    lost: Arc<Mutex<HashMap<SandboxId, u64>>>,
}

/// The task that writes. Ends when every [`StoreJournal`] is gone and what was in
/// the queue is written.
pub struct Writer {
    queue: mpsc::Receiver<Record>,
    store: Store,
    clock: Clock,
    keep: Duration,
}

impl fmt::Debug for StoreJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreJournal").finish_non_exhaustive()
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl StoreJournal {
    /// A journal over `store` whose lines are kept for `keep`, and its task.
    pub fn new(store: Store, clock: Clock, keep: Duration) -> (Self, Writer) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Self { queue: sender, lost: Arc::default() }, Writer { queue, store, clock, keep })
    }

    fn lost(&self) -> MutexGuard<'_, HashMap<SandboxId, u64>> {
        // Nothing panics while it is held.
        self.lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Journal for StoreJournal {
    fn record(&self, mut record: Record) {
        let mut lost = self.lost();
        let missed = lost.remove(&record.sandbox).unwrap_or(0);
        record.dropped = record.dropped.saturating_add(missed);
        if let Err(mpsc::error::TrySendError::Full(record)) = self.queue.try_send(record) {
            let count = record.dropped.saturating_add(1);
            lost.insert(record.sandbox, count);
        }
    }
}

impl Writer {
    /// Writes until nobody records any more.
    pub async fn run(mut self) {
        let mut pruned: Option<Instant> = None;
        let mut batch = Vec::with_capacity(BATCH);
        while self.queue.recv_many(&mut batch, BATCH).await > 0 {
            let lines: Vec<_> = batch.drain(..).map(line).collect();
            self.write(&lines).await;
            if pruned.is_none_or(|last| last.elapsed() > PRUNING) {
                pruned = Some(Instant::now());
                self.prune().await;
            }
        }
    }

    /// Writes a batch, however long the store is away: the queue fills meanwhile,
    /// and what does not fit is counted.
    async fn write(&self, lines: &[EgressLine]) {
        let mut pause = Duration::from_millis(100);
        while let Err(error) = self.store.append_egress(lines).await {
            if !matches!(error, store::error::StoreError::Unavailable(_)) {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, lines = lines.len(), "lines of the egress log were lost");
                return;
            }
            tracing::warn!(%error, "the egress log waits for the database");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn prune(&self) {
        let keep = i64::try_from(self.keep.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp((self.clock)().0.saturating_sub(keep));
        if let Err(error) = self.store.prune_egress(before, MOST).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "old lines of the egress log could not be removed");
        }
    }
}

fn line(record: Record) -> EgressLine {
    EgressLine {
        time: record.time,
        sandbox: record.sandbox,
        session: record.session,
        uid: record.uid,
        front: record.front.as_str().to_owned(),
        destination: record.destination.as_str().to_owned(),
        rule: record.rule.as_str().to_owned(),
        outcome: record.outcome.as_str().to_owned(),
        bytes_out: record.bytes_out,
        bytes_in: record.bytes_in,
        duration_ms: record.duration_ms,
        dropped: record.dropped,
    }
}
