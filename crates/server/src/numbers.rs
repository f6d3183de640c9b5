//! The installation in numbers, as Prometheus reads them.
//!
//! Every label has a handful of values that are ours: phases, classes of status.
//! Nothing that a client or a sandbox can name becomes one, so the number of
//! series is fixed.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use control::metrics::Overview;
use http::StatusCode;

use crate::memory::Memory;

/// Counted since this process began. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By the hundreds of the status.
    requests: [AtomicU64; 6],
    /// Streams and large answers included.
    connections: AtomicU64,
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct Connected(Counters);

impl Counters {
    /// Counts an answer.
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        if let Some(count) = self.0.requests.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a connection for as long as what is returned is held.
    pub(crate) fn connected(&self) -> Connected {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        Connected(self.clone())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Everything as text.
pub(crate) fn text(overview: &Overview, counters: &Counters, memory: &Memory) -> String {
    const MIB: u64 = 1024 * 1024;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (promised, room, capacity) = (&overview.promised, &overview.room, &overview.capacity);
    let share = |of: u64, percent: u64| {
        u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(u64::MAX)
    };
    let mut page = Page::default();
    let version = env!("CARGO_PKG_VERSION");
    page.family("build_info", "gauge", "The version that runs.");
    page.number("build_info", &format!("{{version=\"{version}\"}}"), 1);
    page.family("sandboxes", "gauge", "Sandboxes that have not ended, by state.");
    for (phase, count) in &overview.phases {
        page.number("sandboxes", &format!("{{state=\"{}\"}}", phase.as_str()), count);
    }
    let gauges = [
        ("sandboxes_max", "Sandboxes with a machine that the host takes.", capacity.sandboxes),
        ("promised_cpus", "Processors of sandboxes with a machine.", promised.cpus),
        (
            "promisable_cpus",
            "Processors that may be promised.",
            share(room.cpus.into(), capacity.cpu_percent),
        ),
        (
            "promised_memory_bytes",
            "Memory of sandboxes with a machine.",
            promised.memory_mib.saturating_mul(MIB),
        ),
        (
            "promisable_memory_bytes",
            "Memory that may be promised.",
            share(room.memory_mib, capacity.memory_percent).saturating_mul(MIB),
        ),
        (
            "host_memory_available_bytes",
            "Memory of the host that could be used now.",
            room.available_mib.saturating_mul(MIB),
        ),
        (
            "host_disk_free_bytes",
            "Disk that is free where machines are kept.",
            room.disk_mib.saturating_mul(MIB),
        ),
        (
            "sandbox_memory_bytes",
            "Memory that machines take of the host, as last measured.",
            overview.memory_bytes,
        ),
        ("connections", "Connections that are open.", read(&counters.0.connections)),
        ("request_memory_free_bytes", "Memory that requests may still take.", memory.left()),
    ];
    for (name, help, value) in gauges {
        page.family(name, "gauge", help);
        page.number(name, "", value);
    }
    page.family("sandbox_cpu_seconds_total", "counter", "Processor time of machines.");
    page.number("sandbox_cpu_seconds_total", "", seconds(overview.cpu_us));
    page.family("refused_starts_total", "counter", "Starts that were refused, by code.");
    page.number("refused_starts_total", "{code=\"quota_exceeded\"}", overview.refused_quota);
    page.number("refused_starts_total", "{code=\"host_full\"}", overview.refused_host);
    page.family("requests_total", "counter", "Requests that were answered, by class of status.");
    for (class, count) in counters.0.requests.iter().enumerate().skip(1) {
        page.number("requests_total", &format!("{{class=\"{class}xx\"}}"), read(count));
    }
    page.0
}

/// Millionths as a decimal number.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let head = format!("# HELP coldframe_{name} {help}\n# TYPE coldframe_{name} {kind}\n");
        self.0.push_str(&head);
    }

    fn number(&mut self, name: &str, labels: &str, value: impl Display) {
        self.0.push_str(&format!("coldframe_{name}{labels} {value}\n"));
    }
}
