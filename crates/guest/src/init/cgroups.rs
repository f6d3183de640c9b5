//! Control groups (version 2) of a machine.
//!
//! ```text
//!  coldframe        API and relay: never short of memory or processes
//!  workload         memory.max: all but a reserve
//!    files          file workers: what an upload writes counts as workload
//!    run            pids.max: a fork bomb ends here, file workers still start
//!      <n>          one started process and all its descendants
//! ```
//!
//! A group is what is killed: a descendant cannot leave it by changing its
//! session. Where there is no version 2 (a container), processes are killed by
//! their session's process group, which a descendant can leave.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{MountFlags, mount},
    process::{Pid, Signal, kill_process_group},
};

/// Groups that one sweep looks at.
const SWEEP: usize = 8;
const ROOT: &str = "/sys/fs/cgroup";

/// What the workload may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes.
    pub(super) memory: u64,
    /// Processes and threads.
    pub(super) processes: u64,
}

/// The groups of this machine, or the absence of groups.
#[derive(Debug)]
pub(super) struct Cgroups {
    groups: Option<Groups>,
}

#[derive(Debug)]
struct Groups {
    daemons: OwnedFd,
    files: OwnedFd,
    /// Groups whose process has ended and that were not empty then.
    lingering: RefCell<VecDeque<PathBuf>>,
    /// Numbers the groups.
    last: Cell<u64>,
}

/// The group of one started process.
#[derive(Debug)]
pub(super) struct Group {
    /// The leader of the process group, once it is known.
    leader: Option<Pid>,
    place: Option<(PathBuf, OwnedFd)>,
}

impl Cgroups {
    /// A place without control groups.
    pub(super) fn none() -> Self {
        Self { groups: None }
    }

    /// Mounts the hierarchy and makes the fixed groups.
    pub(super) fn set_up(limits: Limits) -> io::Result<Self> {
        let root = Path::new(ROOT);
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("cgroup2", ROOT, "cgroup2", flags, None)?;
        write(&root.join("cgroup.subtree_control"), "+cpu +memory +pids")?;
        for name in ["coldframe", "workload", "workload/files", "workload/run"] {
            fs::create_dir(root.join(name))?;
        }
        write(&root.join("workload/memory.max"), &limits.memory.to_string())?;
        // Answers stay quick while the workload uses every processor.
        write(&root.join("coldframe/cpu.weight"), "1000")?;
        write(&root.join("workload/cgroup.subtree_control"), "+pids")?;
        write(&root.join("workload/run/pids.max"), &limits.processes.to_string())?;
        let daemons = open(&root.join("coldframe"))?;
        let files = open(&root.join("workload/files"))?;
        let (lingering, last) = Default::default();
        Ok(Self { groups: Some(Groups { daemons, files, lingering, last }) })
    }

    /// Where API and relay live.
    pub(super) fn daemons(&self) -> Option<BorrowedFd<'_>> {
        self.groups.as_ref().map(|groups| groups.daemons.as_fd())
    }

    /// Where file workers live.
    pub(super) fn files(&self) -> Option<BorrowedFd<'_>> {
        self.groups.as_ref().map(|groups| groups.files.as_fd())
    }

    /// Makes the group of the next process.
    pub(super) fn make(&self) -> io::Result<Group> {
        let place = self.groups.as_ref().map(Groups::make).transpose()?;
        Ok(Group { leader: None, place })
    }

    /// Removes a group; if something in it still runs, later.
    pub(super) fn retire(&self, group: Group) {
        if let (Some(groups), Some((path, _))) = (&self.groups, group.place)
            && let Err(error) = fs::remove_dir(&path)
            && error.raw_os_error() == Some(libc::EBUSY)
        {
            groups.lingering.borrow_mut().push_back(path);
        }
    }

    /// Removes groups that have become empty. A few at a time, in turn: the
    /// workload decides how many there are and how often this is called.
    pub(super) fn sweep(&self) {
        let Some(groups) = &self.groups else { return };
        let mut lingering = groups.lingering.borrow_mut();
        for _ in 0..lingering.len().min(SWEEP) {
            let Some(path) = lingering.pop_front() else { return };
            let removed = fs::remove_dir(&path);
            if removed.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
                lingering.push_back(path);
            }
        }
    }
}

impl Groups {
    fn make(&self) -> io::Result<(PathBuf, OwnedFd)> {
        self.last.set(self.last.get() + 1);
        let path = Path::new(ROOT).join(format!("workload/run/{}", self.last.get()));
        fs::create_dir(&path)?;
        let directory = open(&path)?;
        Ok((path, directory))
    }
}

impl Group {
    /// For the fork.
    pub(super) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.place.as_ref().map(|(_, directory)| directory.as_fd())
    }

    /// Names the leader, which has become one of its own session.
    pub(super) fn led_by(&mut self, pid: i32) {
        self.leader = Pid::from_raw(pid);
    }

    /// Sends a signal: 9 to everything in the group, others to the session's
    /// process group, as a terminal does.
    pub(super) fn signal(&self, number: i32) -> io::Result<()> {
        if number == libc::SIGKILL && self.kill().is_ok() {
            return Ok(());
        }
        let leader = self.leader.ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the API's list of signals holds only numbers below 32.
        let signal = unsafe { Signal::from_raw_unchecked(number) };
        Ok(kill_process_group(leader, signal)?)
    }

    fn kill(&self) -> io::Result<()> {
        let (_, directory) = self.place.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, "cgroup.kill", flags, Mode::empty())?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
