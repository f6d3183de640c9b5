//! What every machine of this process is started with, and how one is started.
//!
//! A clone and a template differ in their command line and descriptors; user,
//! cgroup, sockets and confinement are the same for both.

use std::{
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use domain::{image::digest::Digest, size::Resources};
use sandbox::backend::BackendError;

use super::{
    cgroup::{Group, Hierarchy, Limits},
    command::{self, Accelerator, DISK_THREADS, TRANSLATION_MIB, number},
    jail::order::Lifetime,
    launch::{self, Launch, LaunchError, Launcher},
    record::{Folder, Process},
    uids::{Claim, Uids},
};

/// Memory that QEMU itself takes: measured at about 60 MiB, with room for a
/// busy guest's buffers and for page tables.
const OVERHEAD_MIB: u64 = 192;
/// Processor time for QEMU's own work, in hundredths of one processor.
const OVERHEAD_PERCENT: u64 = 20;
/// Threads of QEMU beside processors and disk reads.
const OVERHEAD_THREADS: u64 = 16;

/// The parts that machines are made from.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) launcher: Launcher,
    pub(super) hierarchy: Hierarchy,
    pub(super) uids: Uids,
    pub(super) accelerator: Accelerator,
    pub(super) tsc_khz: u64,
    /// What a machine's processor is.
    pub(super) processor: String,
    pub(super) guest: Arc<[u8]>,
    pub(super) guest_digest: Digest,
}

/// A machine to start.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) folder: &'a Folder,
    pub(super) group: &'a Group,
    pub(super) machine: command::Machine,
    pub(super) claim: Claim,
    pub(super) lifetime: Lifetime,
    pub(super) max_file_bytes: u64,
    /// What it gets beside sockets and log.
    pub(super) descriptors: Vec<(BorrowedFd<'a>, i32)>,
}

/// A machine that was started.
#[derive(Debug)]
pub(super) struct Started {
    /// How to find it again.
    pub(super) process: Process,
    /// A handle on it.
    pub(super) handle: OwnedFd,
}

impl Host {
    /// Starts a machine. Blocks for some milliseconds.
    pub(super) fn start(&self, start: Start<'_>) -> Result<Started, LaunchError> {
        let resources = start.machine.resources;
        let limits = limits(&resources);
        start.group.create(&limits)?;
        let qmp = launch::listen(&start.folder.qmp())?;
        let link = launch::listen(&start.folder.link())?;
        let (log, log_number) = launch::log(&start.folder.complaints())?;
        let mut descriptors = start.descriptors;
        descriptors.extend([
            (log.as_fd(), log_number),
            (qmp.as_fd(), number::QMP),
            (link.as_fd(), number::LINK),
            (start.claim.lock.as_fd(), number::USER),
        ]);
        let pid = self.launcher.start(&Launch {
            group: start.group,
            uid: start.claim.uid,
            kvm: self.accelerator == Accelerator::Kvm,
            lifetime: start.lifetime,
            max_file_bytes: start.max_file_bytes,
            max_processes: limits.processes,
            arguments: command::arguments(&start.machine),
            descriptors,
        })?;
        // It is our child and was not waited for, so the number is still its.
        let process = Process::observe(pid)?;
        let handle = process.open().ok_or_else(|| io::Error::other("it ended at once"))?;
        self.uids.occupy(start.claim.uid, &process)?;
        Ok(Started { process, handle })
    }
}

/// What the processor of a machine is: the host's own, or QEMU's.
pub(super) fn processor(accelerator: Accelerator) -> io::Result<String> {
    match accelerator {
        Accelerator::Tcg => Ok("translated".to_owned()),
        Accelerator::Kvm => {
            let text = fs::read_to_string("/proc/cpuinfo")?;
            let field = |name: &str| {
                let line = text.lines().find(|line| line.starts_with(name));
                line.and_then(|line| line.split_once(": ")).map_or("", |(_, value)| value)
            };
            let flags = Digest::of(field("flags").as_bytes());
            Ok(format!("{} ({})", field("model name"), &flags.hex()[..8]))
        }
    }
}

/// What a machine may take of the host.
///
/// A page of its memory can count twice: once as its own copy, and once in the
/// template's file, where it is charged to the clone that touched it first.
fn limits(resources: &Resources) -> Limits {
    let memory_mib = u64::from(resources.memory_mib);
    let mib = 2 * memory_mib + u64::from(TRANSLATION_MIB) + OVERHEAD_MIB;
    Limits {
        memory_bytes: mib * 1024 * 1024,
        cpu_percent: u64::from(resources.cpus) * 100 + OVERHEAD_PERCENT,
        processes: u64::from(resources.cpus) + DISK_THREADS + OVERHEAD_THREADS,
    }
}

/// Refuses a machine that this host's memory cannot hold.
pub(super) fn room(resources: &Resources) -> Result<(), BackendError> {
    let failed = |source: io::Error| BackendError::failed("reading the host's memory", source);
    let text = fs::read_to_string("/proc/meminfo").map_err(failed)?;
    match super::gauge::memory(&text) {
        Some((total, available)) => fits(resources, total, available),
        None => Err(failed(io::Error::other("/proc/meminfo lacks MemTotal or MemAvailable"))),
    }
}

fn fits(resources: &Resources, total: u64, available: u64) -> Result<(), BackendError> {
    let needed = u64::from(resources.memory_mib);
    if needed > total {
        return Err(BackendError::Refused(format!(
            "a sandbox with {needed} MiB of memory does not fit on this host, which has {total} MiB; \
             choose a smaller size"
        )));
    }
    if needed > available {
        return Err(BackendError::Refused(format!(
            "a sandbox with {needed} MiB of memory does not fit now: {available} MiB of this host \
             are free; end other sandboxes or choose a smaller size"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use domain::size::SizeClass;

    use super::*;

    /// K16, U19: memory beyond the host is refused with both numbers.
    #[test]
    fn a_sandbox_larger_than_the_host_is_refused() {
        let large = Resources::of(SizeClass::Large);
        let refusal = |total, available| fits(&large, total, available).unwrap_err().to_string();
        assert!(refusal(4096, 4000).contains("8192 MiB of memory does not fit on this host"));
        assert!(refusal(16384, 4000).contains("4000 MiB of this host are free"));
        assert!(fits(&large, 16384, 9000).is_ok());
    }

    /// S12, S13, S14
    #[test]
    fn a_machine_may_take_what_its_size_says_and_little_more() {
        let limits = limits(&Resources::of(SizeClass::Medium));
        assert_eq!(limits.cpu_percent, 220);
        assert_eq!(limits.processes, 26);
        assert!(limits.memory_bytes > 2048 << 20);
    }
}
