//! Memory of idle sandboxes: the proportional share (PSS) of every process that
//! exists because of them, the pages of the template included.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use serde::Serialize;

use super::sandboxes::{self, Sandboxes};

/// How long sandboxes are left alone before they are measured.
const SETTLE: Duration = Duration::from_secs(3);

/// What a number of idle sandboxes takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Memory {
    pub(super) sandboxes: usize,
    /// Of the sandboxes' processes, for each sandbox, in MiB.
    pub(super) each: f64,
    /// Of the server, in MiB.
    pub(super) server: f64,
}

/// Creates as many sandboxes as each of `counts` says and measures.
pub(super) fn of_idle(counts: &[usize], server: &Sandboxes<'_>) -> anyhow::Result<Vec<Memory>> {
    let mut exchange = server.open()?;
    let before = processes();
    let mut ids = Vec::new();
    let mut found = Vec::new();
    for count in counts {
        while ids.len() < *count {
            ids.push(sandboxes::create(&mut exchange)?);
        }
        thread::sleep(SETTLE);
        let kib: u64 = processes().difference(&before).filter_map(|process| pss(*process)).sum();
        found.push(Memory {
            sandboxes: *count,
            each: mib(kib) / *count as f64,
            server: mib(pss(server.process).unwrap_or_default()),
        });
    }
    for id in ids {
        sandboxes::remove(&mut exchange, &id)?;
    }
    Ok(found)
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// The processes of sandboxes, by what they execute: the hypervisor, and our own
/// program where it keeps watch.
fn processes() -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        let program = fs::read_link(format!("/proc/{id}/exe")).unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("qemu-system") || name.starts_with("coldframe")
    })
    .collect()
}

/// The proportional share of a process in KiB.
fn pss(process: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
