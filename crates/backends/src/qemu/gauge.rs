//! What the host has, and what a machine takes of it, from the kernel's files.

use std::{fs, io, path::Path};

use sandbox::gauge::{Room, Taken};

use super::{cgroup::Group, record::Process};

/// Ticks of a processor's time in a second, which Linux fixes for programs.
const TICKS: u64 = 100;
const MIB: u64 = 1024 * 1024;

/// What the host has, with the disk that holds `folder`.
pub(super) fn room(folder: &Path) -> io::Result<Room> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let (memory_mib, available_mib) = memory(&text)
        .ok_or_else(|| io::Error::other("/proc/meminfo lacks MemTotal or MemAvailable"))?;
    let disk = rustix::fs::statvfs(folder)?;
    let cpus = std::thread::available_parallelism()?;
    Ok(Room {
        cpus: u32::try_from(cpus.get()).unwrap_or(u32::MAX),
        memory_mib,
        available_mib,
        disk_mib: disk.f_bavail.saturating_mul(disk.f_frsize) / MIB,
    })
}

/// Total and available memory in MiB.
pub(super) fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let mib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .map(|kib| kib / 1024)
    };
    Some((mib("MemTotal:")?, mib("MemAvailable:")?))
}

/// What a machine takes. Its process is ours to look at, or nobody's.
pub(super) fn taken(group: &Group, process: &Process) -> Option<Taken> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?;
    // Read after its time, so that it is known whose time that was.
    process.open()?;
    let cpu_us = ticks(&stat)?.saturating_mul(1_000_000 / TICKS);
    Some(Taken { cpu_us, memory_bytes: group.memory_bytes() })
}

/// Time in user mode and in the kernel, the 14th and 15th field. The second is a
/// name in parentheses that may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    user.parse::<u64>().ok()?.checked_add(system.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_is_read_past_its_name() {
        let stat = "7 (a) b (c) S 1 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 9 1 1";
        assert_eq!(ticks(stat), Some(200));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn this_host_has_something() {
        let room = room(Path::new("/")).unwrap();
        assert!(room.cpus > 0 && room.available_mib <= room.memory_mib, "{room:?}");
    }
}
