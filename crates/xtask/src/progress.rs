//! Progress of a long task: what is done now, how long it took, how much is left.
//!
//! How long a step took is remembered from run to run in the cache, the last time
//! and the longest: a build takes a second or some minutes, and which of the two
//! is not known before it is done, so both are said. Without a memory the first
//! run says how many steps are left and nothing about time.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::workspace;

/// How long each step took, by `task/step`.
type Times = BTreeMap<String, Past>;

/// Seconds that a step took when it succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Past {
    last: f64,
    longest: f64,
}

/// A task of known steps.
#[derive(Debug)]
pub(crate) struct Progress {
    task: &'static str,
    steps: Vec<String>,
    next: usize,
    times: Times,
    taken: Vec<(String, Duration)>,
}

impl Progress {
    /// A task whose steps are named in the order in which they will be done.
    pub(crate) fn new(task: &'static str, steps: &[&str]) -> Self {
        let steps = steps.iter().map(ToString::to_string).collect();
        Self { task, steps, next: 0, times: load(), taken: Vec::new() }
    }

    /// Does the next step. Its error says which step failed.
    pub(crate) fn step<T>(
        &mut self,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let name = self.steps[self.next].clone();
        println!("==> [{}/{}] {name}{}", self.next + 1, self.steps.len(), self.outlook());
        self.next += 1;
        let began = Instant::now();
        let result = work().with_context(|| format!("step `{name}` of {} failed", self.task));
        let taken = began.elapsed();
        println!("    {} in {}", if result.is_ok() { "done" } else { "failed" }, shown(taken));
        self.taken.push((name.clone(), taken));
        if result.is_ok() {
            let past = self.times.entry(format!("{}/{name}", self.task)).or_default();
            past.last = taken.as_secs_f64();
            past.longest = past.longest.max(past.last);
            save(&self.times);
        }
        result
    }

    /// What each step that was taken so far took.
    pub(crate) fn taken(&self) -> &[(String, Duration)] {
        &self.taken
    }

    /// What the last step took.
    pub(crate) fn last(&self) -> Duration {
        self.taken.last().map(|(_, taken)| *taken).unwrap_or_default()
    }

    /// How long this and all remaining steps took before.
    fn outlook(&self) -> String {
        let past = |step: &String| self.times.get(&format!("{}/{step}", self.task)).copied();
        let Some(this) = past(&self.steps[self.next]) else { return String::new() };
        let left = self.steps[self.next..].iter().filter_map(past).fold(Past::default(), Past::and);
        format!(" ({}; {} left in all)", this.told("last time "), left.told("about "))
    }
}

impl Past {
    fn and(self, other: Self) -> Self {
        Self { last: self.last + other.last, longest: self.longest + other.longest }
    }

    /// In words, with the longest where that is another matter.
    fn told(self, how: &str) -> String {
        let shown = |seconds: f64| shown(Duration::from_secs_f64(seconds));
        let last = format!("{how}{}", shown(self.last));
        if self.longest < 2.0 * self.last + 5.0 {
            return last;
        }
        format!("{last}, or up to {} if something has changed", shown(self.longest))
    }
}

/// A duration as a person reads it.
pub(crate) fn shown(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

fn file() -> anyhow::Result<PathBuf> {
    Ok(workspace::cache()?.join("times.json"))
}

/// The memory is a convenience: one that cannot be read is empty.
fn load() -> Times {
    let text = file().and_then(|path| Ok(fs::read_to_string(path)?)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// One that cannot be written is forgotten.
fn save(times: &Times) {
    let Ok(path) = file() else { return };
    if let (Some(folder), Ok(text)) = (path.parent(), serde_json::to_string_pretty(times)) {
        drop(fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_its_own_size() {
        let shown = |millis| shown(Duration::from_millis(millis));
        assert_eq!(shown(140), "0.1 s");
        assert_eq!(shown(61_900), "61 s");
        assert_eq!(shown(125_000), "2 min 5 s");
    }

    #[test]
    fn a_step_that_may_take_much_longer_is_told_so() {
        let told = |last, longest| Past { last, longest }.told("about ");
        assert_eq!(told(1.0, 400.0), "about 1.0 s, or up to 6 min 40 s if something has changed");
        assert_eq!(told(300.0, 400.0), "about 5 min 0 s");
        assert_eq!(told(1.0, 2.0), "about 1.0 s");
    }
}
