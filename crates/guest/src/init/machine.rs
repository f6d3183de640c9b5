//! From a bare kernel to a machine that can start processes.
//!
//! The order matters: kernel file systems first, because everything is found
//! through them; modules before the disk they drive; the root before the
//! settings that must hold in it. A failed step ends the machine.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, OFlags},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use super::{
    cgroups::{Cgroups, Limits},
    identity::Names,
    modules, mounts, network,
    parameters::Parameters,
    step, sysctl,
};

/// Open files of init and its daemons: three for each of the processes, and more.
const MAX_FILES: u64 = 65_536;
/// Open files that a workload may allow itself.
const MOST_FILES: u64 = 1_048_576;
/// Memory that the workload never gets, for the kernel, init and its daemons.
const RESERVE: u64 = 64 * 1024 * 1024;

/// Brings the machine up.
pub(super) fn set_up() -> io::Result<(Cgroups, Names)> {
    let files = Rlimit { current: Some(MAX_FILES), maximum: Some(MOST_FILES) };
    step("raise the limit of open files", setrlimit(Resource::Nofile, files).map_err(Into::into))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    step("mount the kernel's file systems", mounts::kernel())?;
    let line = step("read the command line", std::fs::read_to_string("/proc/cmdline"))?;
    let parameters = Parameters::parse(&line);
    step("load modules", modules::load())?;
    mounts::root(&parameters)?;
    let names = step("prepare the names", Names::prepare())?;
    step("bring up loopback", network::loopback())?;
    step("set kernel settings", sysctl::apply())?;
    let limits = Limits { memory: workload_memory(), processes: parameters.processes };
    let cgroups = step("make control groups", Cgroups::set_up(limits))?;
    Ok((cgroups, names))
}

/// Opens the running program itself, so that it can be started again when its
/// name is gone.
pub(super) fn this_program() -> io::Result<OwnedFd> {
    match rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        // The machine has no /proc yet; there the kernel started this file.
        Err(rustix::io::Errno::NOENT) => {
            Ok(rustix::fs::open("/init", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

pub(super) fn open_null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

pub(super) fn raise_file_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(maximum.unwrap_or(MAX_FILES).min(MAX_FILES));
    Ok(setrlimit(Resource::Nofile, Rlimit { current, maximum })?)
}

fn workload_memory() -> u64 {
    let system = rustix::system::sysinfo();
    let total = system.totalram as u64 * u64::from(system.mem_unit);
    workload_share(total)
}

/// All but the reserve; of a small machine, three quarters.
fn workload_share(total: u64) -> u64 {
    total.saturating_sub(RESERVE).max(total / 4 * 3)
}

#[cfg(test)]
mod tests {
    use super::workload_share;

    /// S14: the workload cannot have the memory that init and the API need.
    #[test]
    fn a_part_of_the_memory_is_kept_back() {
        let mib = |n: u64| n * 1024 * 1024;
        assert_eq!(workload_share(mib(512)), mib(448));
        assert_eq!(workload_share(mib(128)), mib(96));
    }
}
