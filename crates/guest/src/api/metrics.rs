//! `/metrics`: what the sandbox uses.

use std::{
    cell::Cell,
    time::{SystemTime, UNIX_EPOCH},
};

use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::http::body::{self, Body};

/// Measures processor use between two calls.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Cell<Ticks>,
}

/// Processor time since the start, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    total: u64,
}

#[derive(Debug, Serialize)]
struct Metrics {
    ts: u64,
    cpu_count: usize,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    disk_total: u64,
    disk_used: u64,
    processes: u64,
}

impl Meter {
    /// Measures now; the processor's share is that since the last call.
    pub(crate) fn answer(&self) -> Response<Body> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (now, cpu_count) = ticks(&read("/proc/stat"));
        let before = self.last.replace(now);
        let memory = read("/proc/meminfo");
        let mem_total = field(&memory, "MemTotal:");
        let (disk_total, disk_used) = disk();
        let metrics = Metrics {
            ts: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            cpu_count,
            cpu_used_pct: share(before, now),
            mem_total,
            mem_used: mem_total.saturating_sub(field(&memory, "MemAvailable:")),
            mem_cache: field(&memory, "Cached:"),
            disk_total,
            disk_used,
            processes: processes(),
        };
        body::json(StatusCode::OK, serde_json::to_vec(&metrics).unwrap_or_default())
    }
}

fn disk() -> (u64, u64) {
    match rustix::fs::statvfs("/") {
        Ok(fs) => (fs.f_blocks * fs.f_frsize, (fs.f_blocks - fs.f_bfree) * fs.f_frsize),
        Err(_) => (0, 0),
    }
}

/// Those of the workload; in a container, all of it.
fn processes() -> u64 {
    let group = std::fs::read_to_string("/sys/fs/cgroup/workload/run/pids.current");
    if let Some(count) = group.ok().and_then(|text| text.trim().parse().ok()) {
        return count;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let total = load.split_whitespace().nth(3).and_then(|part| part.split('/').nth(1));
    total.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Reads `/proc/stat`: time of all processors, and how many there are.
fn ticks(stat: &str) -> (Ticks, usize) {
    let count =
        stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is in user.
    let values: Vec<u64> =
        all.split_whitespace().take(8).filter_map(|text| text.parse().ok()).collect();
    let total: u64 = values.iter().sum();
    let idle: u64 = values.iter().skip(3).take(2).sum();
    (Ticks { busy: total - idle, total }, count)
}

fn share(before: Ticks, now: Ticks) -> f64 {
    let total = now.total.saturating_sub(before.total);
    let busy = now.busy.saturating_sub(before.busy);
    if total == 0 { 0.0 } else { (busy as f64 * 10_000.0 / total as f64).round() / 100.0 }
}

/// A line of `/proc/meminfo` in bytes.
fn field(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let kib: u64 = line.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
    kib * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_and_compared() {
        let stat =
            "cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 5 0 5 35 5 0 0 0\ncpu1 5 0 5 35 5 0 0 0\nintr 1";
        let (now, count) = ticks(stat);
        assert_eq!((now, count), (Ticks { busy: 20, total: 100 }, 2));
        assert_eq!(share(Ticks::default(), now), 20.0);
        assert_eq!(share(now, now), 0.0);
    }

    #[test]
    fn memory_is_in_bytes() {
        assert_eq!(field("MemTotal:     2048 kB\nCached: 1 kB\n", "MemTotal:"), 2048 * 1024);
        assert_eq!(field("", "MemTotal:"), 0);
    }
}
