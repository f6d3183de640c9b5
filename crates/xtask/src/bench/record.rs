//! Everything that was measured in one run.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Serialize;
use serde_json::Value;

use super::{crowd::Crowd, facts::Facts, memory::Memory, peers::Timing, samples::Samples};

/// Whose lines of the log tell where the time of a start goes.
const DRIVERS: [&str; 2] = ["backends", "sandbox"];

/// One way to run a program.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) first: Samples,
    pub(super) exit: Samples,
    /// Moments in between, or parts of the whole.
    pub(super) parts: Vec<(String, Samples)>,
}

impl Way {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, first: Samples::default(), exit: Samples::default(), parts: Vec::new() }
    }

    pub(super) fn add(&mut self, timing: Timing) {
        self.first.push(timing.first);
        self.exit.push(timing.exit);
    }
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    pub(super) facts: Facts,
    pub(super) starts: Vec<Way>,
    /// Where the time of a start goes, by the name of the part.
    pub(super) inside: BTreeMap<String, Samples>,
    pub(super) commands: Vec<Way>,
    pub(super) memory: Vec<Memory>,
    pub(super) crowds: Vec<Crowd>,
}

impl Record {
    pub(super) fn new(facts: Facts) -> Self {
        Self {
            facts,
            starts: Vec::new(),
            inside: BTreeMap::new(),
            commands: Vec::new(),
            memory: Vec::new(),
            crowds: Vec::new(),
        }
    }

    /// Takes the parts of each start from the server's log: every field whose
    /// name says that it is a time, in a line of those who make and drive
    /// machines.
    pub(super) fn time_inside(&mut self, log: &Path) -> anyhow::Result<()> {
        for line in fs::read_to_string(log)?.lines() {
            let Ok(Value::Object(line)) = serde_json::from_str(line) else { continue };
            let text = |name| line.get(name).and_then(Value::as_str).unwrap_or_default();
            if !DRIVERS.iter().any(|driver| text("target").starts_with(driver)) {
                continue;
            }
            // What the sandbox was called matters to nobody here.
            let message = text("message").split(" of sandbox ").next().unwrap_or_default();
            for (name, value) in &line {
                if let Some((part, millis)) = value.as_f64().and_then(|value| time(name, value)) {
                    let part = format!("{message}: {}", part.replace('_', " "));
                    self.inside.entry(part).or_default().push_millis(millis);
                }
            }
        }
        Ok(())
    }

    /// The way of this name, in whichever measurement it is.
    pub(super) fn way(&self, name: &str) -> Option<&Way> {
        self.starts.iter().chain(&self.commands).find(|way| way.name == name)
    }
}

/// The name of a part and its time in milliseconds, by the unit in its name.
fn time(name: &str, value: f64) -> Option<(&str, f64)> {
    let millis = name.strip_suffix("_ms").map(|part| (part, value));
    millis.or_else(|| name.strip_suffix("_us").map(|part| (part, value / 1000.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_known_by_its_unit() {
        assert_eq!(time("boot_ms", 3.0), Some(("boot", 3.0)));
        assert_eq!(time("load_us", 1500.0), Some(("load", 1.5)));
        assert_eq!(time("attempts", 2.0), None);
    }
}
