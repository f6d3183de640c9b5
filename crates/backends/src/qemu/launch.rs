//! Starts a confined machine, from the backend's side.
//!
//! The jailer is an ordinary child that is given its orders over a socket, with
//! the descriptors as rights. So nothing has to be inherited by accident, and no
//! code runs between fork and exec in a process with threads.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
    process::{Pid, Signal, WaitOptions},
};

use super::{
    build::Build,
    cgroup::Group,
    command::number,
    jail::{
        order::{self, Lifetime, Order, Report},
        watcher::LIFE,
    },
};

/// The most QEMU may write into its log.
const MAX_LOG_BYTES: u64 = 1024 * 1024;

/// What every machine is started with.
#[derive(Debug)]
pub(super) struct Launcher {
    jailer: PathBuf,
    build: Build,
    /// How long the jailer may take. It has little to do.
    bound: Duration,
    /// The reading end goes to the watchers; the writing end is only here.
    life: (OwnedFd, OwnedFd),
}

/// One machine to start.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) group: &'a Group,
    pub(super) uid: u32,
    pub(super) kvm: bool,
    pub(super) lifetime: Lifetime,
    /// The most it may write into one file, at least enough for its log.
    pub(super) max_file_bytes: u64,
    pub(super) max_processes: u64,
    pub(super) arguments: Vec<String>,
    /// What it gets, each with its number.
    pub(super) descriptors: Vec<(BorrowedFd<'a>, i32)>,
}

/// Why a machine could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// The jailer could not confine it.
    #[error("{step}: {cause}")]
    Refused { step: String, cause: String },
    /// The jailer could not be run, or said nothing.
    #[error("the jailer did not do its work")]
    Jailer(#[from] io::Error),
}

impl Launcher {
    /// Starts `build` through the program `jailer`.
    pub(super) fn new(jailer: PathBuf, build: Build) -> io::Result<Self> {
        let life = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Self { jailer, build, bound: Duration::from_secs(20), life })
    }

    /// The build that it starts.
    pub(super) fn build(&self) -> &Build {
        &self.build
    }

    /// Starts a machine and returns the number of its first process, which is
    /// our child. Blocks until QEMU was executed.
    pub(super) fn start(&self, launch: &Launch<'_>) -> Result<i32, LaunchError> {
        let (near, far) = socket_pair()?;
        sockopt::set_socket_timeout(&near, sockopt::Timeout::Recv, Some(self.bound))
            .map_err(io::Error::from)?;
        let mut jailer = Command::new(&self.jailer)
            .arg("jail")
            .env_clear()
            .current_dir("/")
            .stdin(far)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let started = self.instruct(near.as_fd(), launch);
        if started.is_err() {
            // It may still wait for something. It has made nothing that the
            // cgroup does not hold.
            jailer.kill().unwrap_or_default();
        }
        jailer.wait()?;
        let pid = started?;
        match order::next_report(near.as_fd()) {
            Ok(None) => Ok(pid),
            Ok(Some(report)) => {
                reap(pid);
                Err(refusal(report))
            }
            Err(error) => {
                reap(pid);
                Err(error.into())
            }
        }
    }

    fn instruct(&self, socket: BorrowedFd<'_>, launch: &Launch<'_>) -> Result<i32, LaunchError> {
        let mut descriptors: Vec<_> = launch.descriptors.iter().map(|(fd, _)| *fd).collect();
        let mut numbers: Vec<_> = launch.descriptors.iter().map(|(_, number)| *number).collect();
        if launch.lifetime == Lifetime::EndsWithCaller {
            descriptors.push(self.life.0.as_fd());
            numbers.push(LIFE);
        }
        let order = Order {
            root: self.build.root.clone(),
            cgroups: launch.group.doors(),
            uid: launch.uid,
            kvm: launch.kvm,
            max_file_bytes: launch.max_file_bytes.max(MAX_LOG_BYTES),
            max_processes: launch.max_processes,
            lifetime: launch.lifetime,
            program: self.build.program.clone(),
            arguments: launch.arguments.clone(),
            numbers,
        };
        order::send(socket, &order, &descriptors)?;
        match order::next_report(socket)? {
            Some(Report::Started { pid }) => Ok(pid),
            Some(report) => Err(refusal(report)),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// Makes a listening socket for one client at a time.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let address = SocketAddrUnix::new(path).map_err(|_| {
        io::Error::other(format!("{} is too long for the path of a socket", path.display()))
    })?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

/// Opens the file for QEMU's complaints, with the number it gets.
pub(super) fn log(path: &Path) -> io::Result<(OwnedFd, i32)> {
    let file = File::options().create(true).append(true).open(path)?;
    Ok((file.into(), number::STDERR))
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

fn refusal(report: Report) -> LaunchError {
    match report {
        Report::Failed { step, cause } => LaunchError::Refused { step, cause },
        Report::Started { .. } => io::Error::other("it reported twice").into(),
    }
}

/// Ends a child of ours that nobody was told about, and takes its result.
pub(super) fn reap(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // Nobody else waits for it, so the number is still its.
        rustix::process::kill_process(pid, Signal::KILL).unwrap_or_default();
        rustix::process::waitpid(Some(pid), WaitOptions::empty()).ok();
    }
}
