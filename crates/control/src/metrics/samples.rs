//! The samples of the last minutes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use domain::{id::SandboxId, time::Timestamp};
use sandbox::gauge::{Inside, Taken};

/// How many are kept of a sandbox: ten minutes of rounds.
const KEPT: usize = 40;

/// How busy a sandbox was at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub time: Timestamp,
    /// Processor use since the sample before, in hundredths of one processor.
    pub cpu_percent: Option<f64>,
    /// Processor time since the machine was made.
    pub cpu_us: Option<u64>,
    /// Memory that the machine takes of the host.
    pub memory_bytes: Option<u64>,
    /// What the guest says, if it answered.
    pub inside: Option<Inside>,
}

/// Those of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    of: HashMap<SandboxId, VecDeque<Sample>>,
    /// Processor time of all, those that are gone included.
    cpu_us: u64,
}

impl Samples {
    /// Adds one.
    pub(crate) fn add(
        &self,
        id: &SandboxId,
        now: Timestamp,
        taken: Option<Taken>,
        inside: Option<Inside>,
    ) {
        let mut kept = self.kept();
        let samples = kept.of.entry(id.clone()).or_default();
        let cpu_us = taken.map(|taken| taken.cpu_us);
        let last = samples.iter().rev().find_map(|sample| Some((sample.time, sample.cpu_us?)));
        let (mut more, mut cpu_percent) = (0, None);
        if let (Some((time, before)), Some(cpu_us)) = (last, cpu_us) {
            // A sandbox that was paused and resumed has a new machine.
            more = cpu_us.checked_sub(before).unwrap_or(cpu_us);
            let passed = time.until(now).as_micros();
            cpu_percent = (passed > 0).then(|| percent(more, passed));
        }
        if samples.len() == KEPT {
            samples.pop_front();
        }
        let memory_bytes = taken.map(|taken| taken.memory_bytes);
        samples.push_back(Sample { time: now, cpu_percent, cpu_us, memory_bytes, inside });
        kept.cpu_us = kept.cpu_us.saturating_add(more);
    }

    /// Those of one, oldest first.
    pub(crate) fn of(&self, id: &SandboxId) -> Vec<Sample> {
        self.kept().of.get(id).map(|samples| samples.iter().cloned().collect()).unwrap_or_default()
    }

    /// Whether its last one is not older than `age`.
    pub(crate) fn is_fresh(&self, id: &SandboxId, now: Timestamp, age: Duration) -> bool {
        let kept = self.kept();
        let last = kept.of.get(id).and_then(VecDeque::back);
        last.is_some_and(|sample| sample.time.until(now) < age)
    }

    /// Forgets all others.
    pub(crate) fn keep_only(&self, ids: &[SandboxId]) {
        let ids: HashSet<_> = ids.iter().collect();
        self.kept().of.retain(|id, _| ids.contains(id));
    }

    /// The memory of all by their last samples, and the processor time since the
    /// first sample of each.
    pub(crate) fn total(&self) -> (u64, u64) {
        let kept = self.kept();
        let last = kept.of.values().filter_map(|samples| samples.back()?.memory_bytes);
        (last.sum(), kept.cpu_us)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In hundredths of one processor, with one digit behind the point.
#[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
fn percent(cpu_us: u64, passed_us: u128) -> f64 {
    (cpu_us as f64 * 1000.0 / passed_us as f64).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1000;

    fn taken(cpu_us: u64) -> Option<Taken> {
        Some(Taken { cpu_us, memory_bytes: 7 })
    }

    #[test]
    fn processor_use_is_between_two_samples() {
        let (samples, id) = (Samples::default(), SandboxId::from_random([1; 16]));
        samples.add(&id, Timestamp(0), taken(1_000_000), None);
        samples.add(&id, Timestamp(2 * SECOND), taken(4_000_000), None);
        // The host could not measure it for once.
        samples.add(&id, Timestamp(3 * SECOND), None, None);
        samples.add(&id, Timestamp(4 * SECOND), taken(5_000_000), None);
        // Another machine after a pause, and a clock that was set back.
        samples.add(&id, Timestamp(5 * SECOND), taken(500_000), None);
        samples.add(&id, Timestamp(SECOND), taken(600_000), None);
        let percents: Vec<_> = samples.of(&id).iter().map(|sample| sample.cpu_percent).collect();
        assert_eq!(percents, [None, Some(150.0), None, Some(50.0), Some(50.0), None]);
        assert_eq!(samples.total(), (7, 3_000_000 + 1_000_000 + 500_000 + 100_000));
    }

    #[test]
    fn samples_are_kept_for_a_while_and_not_beyond_the_sandbox() {
        let (samples, id) = (Samples::default(), SandboxId::from_random([1; 16]));
        for n in 0..100 {
            samples.add(&id, Timestamp(n), taken(0), None);
        }
        assert_eq!(samples.of(&id).len(), KEPT);
        assert!(samples.is_fresh(&id, Timestamp(99), Duration::from_millis(1)));
        assert!(!samples.is_fresh(&id, Timestamp(100), Duration::from_millis(1)));
        samples.keep_only(&[SandboxId::from_random([2; 16])]);
        assert_eq!(samples.of(&id), []);
    }
}
