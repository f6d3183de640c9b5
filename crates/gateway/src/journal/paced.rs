//! A journal that one sandbox cannot flood.
//!
//! Each sandbox may have so many records at once and so many a second. What is
//! over that is counted, by sandbox, and the count goes out with the next record
//! that passes, or with one of its own when nothing else comes ([`Paced::run`]).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use domain::{
    id::SandboxId,
    time::{Clock, Timestamp},
};

use super::{Journal, Record};
use crate::{decide::Front, pace::Pace};

/// Records of one sandbox: at once, and each second.
const BURST: u32 = 256;
const PER_SECOND: u32 = 64;
/// How often what was left out is told, at the latest.
const TOLD: Duration = Duration::from_secs(1);
/// A sandbox that was quiet for so long is forgotten.
const QUIET: Duration = Duration::from_secs(60);

/// A journal in front of another.
pub struct Paced {
    inner: Arc<dyn Journal>,
    clock: Clock,
    sandboxes: Mutex<HashMap<SandboxId, Meter>>,
}

struct Meter {
    pace: Pace,
    last: Instant,
    dropped: u64,
}

impl std::fmt::Debug for Paced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paced").finish_non_exhaustive()
    }
}

impl Paced {
    /// Puts limits in front of `inner`.
    pub fn new(inner: Arc<dyn Journal>, clock: Clock) -> Self {
        Self { inner, clock, sandboxes: Mutex::default() }
    }

    /// Tells what was left out, again and again. Does not return.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(TOLD).await;
            self.tell(Instant::now());
        }
    }

    /// Tells what was left out of sandboxes that may have a record again.
    fn tell(&self, now: Instant) {
        let time = (self.clock)();
        let mut told = Vec::new();
        self.meters().retain(|id, meter| {
            if meter.dropped > 0 && meter.pace.take(now) {
                told.push(summary(id, time, std::mem::take(&mut meter.dropped)));
            }
            meter.dropped > 0 || now.saturating_duration_since(meter.last) < QUIET
        });
        for record in told {
            self.inner.record(record);
        }
    }

    fn meters(&self) -> MutexGuard<'_, HashMap<SandboxId, Meter>> {
        // Nothing panics while it is held.
        self.sandboxes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn admit(&self, record: &mut Record, now: Instant) -> bool {
        let mut meters = self.meters();
        let meter = meters.entry(record.sandbox.clone()).or_insert_with(|| Meter {
            pace: Pace::new(BURST, PER_SECOND, now),
            last: now,
            dropped: 0,
        });
        meter.last = now;
        if meter.pace.take(now) {
            record.dropped += std::mem::take(&mut meter.dropped);
            return true;
        }
        // What a record that is left out stood for is left out too.
        meter.dropped += 1 + record.dropped;
        false
    }
}

impl Journal for Paced {
    fn record(&self, mut record: Record) {
        if self.admit(&mut record, Instant::now()) {
            self.inner.record(record);
        }
    }
}

fn summary(sandbox: &SandboxId, time: Timestamp, dropped: u64) -> Record {
    Record {
        time,
        sandbox: sandbox.clone(),
        session: None,
        uid: None,
        front: Front::Proxy,
        destination: "-".into(),
        rule: "journal".into(),
        outcome: "dropped".into(),
        bytes_out: 0,
        bytes_in: 0,
        duration_ms: 0,
        dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Record>>);

    impl Journal for Kept {
        fn record(&self, record: Record) {
            self.0.lock().unwrap().push(record);
        }
    }

    /// L-01, TM12: a flood is bounded, and what is left out is counted: records
    /// and counts together are the events.
    #[test]
    fn a_flood_is_bounded_and_counted() {
        let kept = Arc::new(Kept::default());
        let paced = Paced::new(kept.clone(), || Timestamp(7));
        let [loud, quiet] = [1, 2].map(|byte| SandboxId::from_random([byte; 16]));
        let record = |sandbox: &SandboxId| summary(sandbox, Timestamp(1), 0);
        for _ in 0..10_000 {
            paced.record(record(&loud));
        }
        paced.record(record(&quiet));
        let of = |sandbox: &SandboxId| {
            let kept = kept.0.lock().unwrap();
            let records = kept.iter().filter(|record| record.sandbox == *sandbox);
            let (told, dropped): (Vec<_>, Vec<_>) =
                records.map(|record| (usize::from(record.dropped == 0), record.dropped)).unzip();
            (told.len(), dropped.into_iter().sum::<u64>())
        };
        assert_eq!(of(&quiet), (1, 0));
        let (told, _) = of(&loud);
        assert!((256..400).contains(&told), "{told}");
        // Nothing else comes, and the count is told all the same.
        paced.tell(Instant::now() + Duration::from_secs(5));
        let (all, dropped) = of(&loud);
        assert_eq!(all, told + 1);
        assert_eq!(told as u64 + dropped, 10_000);
        // And a quiet sandbox takes no memory.
        paced.tell(Instant::now() + Duration::from_secs(500));
        assert!(paced.meters().is_empty());
    }
}
