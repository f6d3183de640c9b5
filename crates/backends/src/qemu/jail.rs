//! The process that confines QEMU and then becomes it.
//!
//! The backend starts its jailer with one end of a socket as standard input and
//! sends an [`order::Order`] with the descriptors that the machine may have. The jailer
//! joins the sandbox's cgroup, leaves every namespace of the host, and splits
//! off a child that builds the new root, gives up every right and executes
//! QEMU ([`enter`]). The jailer itself reports the child and ends.
//!
//! ```text
//!  backend ──► jailer ──► child (pid 1 of its namespace) ──exec──► QEMU
//!     ▲          │ a sibling: the backend's own child, so it can be awaited
//!     └──────────┘
//! ```
//!
//! A machine that must not outlive its maker gets a [`watcher`] as pid 1: it ends
//! when the maker's end of a pipe is closed, however that came about, and the
//! kernel ends the rest of the namespace with it.
//!
//! What must hold: [`main`] runs before any thread exists, because namespaces,
//! user ids and capabilities belong to threads. Whatever goes wrong is reported
//! and ends the process: QEMU never starts half confined.

use std::{
    fs, io,
    os::fd::{AsFd, FromRawFd, OwnedFd},
    process::ExitCode,
};

use rustix::thread::UnshareFlags;

pub(super) mod enter;
pub(super) mod order;
pub(super) mod watcher;

use order::{Lifetime, Order, Report};

/// Why a machine could not be confined.
#[derive(Debug)]
pub(super) struct Failure {
    /// What was being done.
    step: String,
    /// Why it failed.
    cause: io::Error,
}

/// Says what was being done, should it fail.
pub(super) fn during<T, E: Into<io::Error>>(
    step: impl Into<String>,
    result: Result<T, E>,
) -> Result<T, Failure> {
    result.map_err(|cause| Failure { step: step.into(), cause: cause.into() })
}

/// Runs the jailer. To be called first thing in `main`, with no thread started.
pub fn main() -> ExitCode {
    // SAFETY: descriptor 0 is the socket the backend gave us. Nothing else in
    // this process uses standard input, so this is its only owner.
    let input = unsafe { OwnedFd::from_raw_fd(0) };
    // The machine's own descriptors will have the low numbers.
    let Ok(socket) = enter::park(input) else {
        return ExitCode::from(2);
    };
    let mut status = Some(socket);
    match run(&mut status) {
        Ok(code) => code,
        Err(failure) => {
            let report = Report::Failed { step: failure.step, cause: failure.cause.to_string() };
            // The backend may be gone; then nobody is left to tell.
            match status {
                Some(socket) if order::report(socket.as_fd(), &report).is_ok() => ExitCode::FAILURE,
                _ => ExitCode::from(2),
            }
        }
    }
}

/// `status` is the socket, until nothing can be said any more.
fn run(status: &mut Option<OwnedFd>) -> Result<ExitCode, Failure> {
    let socket = status.as_ref().ok_or(rustix::io::Errno::BADF);
    let socket = during("finding the socket", socket)?.as_fd();
    let (order, descriptors) = during("receiving the order", order::receive(socket))?;
    single_thread()?;
    for path in &order.cgroups {
        during("joining the cgroup", fs::write(path, "0"))?;
    }
    // SAFETY: the flags change what this process sees, not its descriptor table
    // or memory; and it has one thread, as was just checked.
    let unshared = unsafe {
        rustix::thread::unshare_unsafe(
            UnshareFlags::NEWNS
                | UnshareFlags::NEWNET
                | UnshareFlags::NEWIPC
                | UnshareFlags::NEWUTS
                | UnshareFlags::NEWPID
                | UnshareFlags::NEWCGROUP,
        )
    };
    during("leaving the host's namespaces", unshared)?;
    match during("splitting off", split(libc::CLONE_PARENT))? {
        Some(pid) => {
            during("reporting", order::report(socket, &Report::Started { pid }))?;
            Ok(ExitCode::SUCCESS)
        }
        None => become_machine(status, order, descriptors),
    }
}

/// Runs in the child. Returns only with a failure, or as a watcher at the end.
fn become_machine(
    status: &mut Option<OwnedFd>,
    order: Order,
    descriptors: Vec<OwnedFd>,
) -> Result<ExitCode, Failure> {
    enter::root(&order)?;
    let socket = status.as_ref().map(AsFd::as_fd);
    let table = enter::Descriptors::arrange(socket, &order, descriptors)?;
    if order.lifetime == Lifetime::EndsWithCaller
        && let Some(machine) = during("splitting off", split(0))?
    {
        // The machine alone must hold it, or its end would say nothing.
        status.take();
        return watcher::watch(machine);
    }
    enter::renounce(&order)?;
    // Of the descriptors, only the ones in the table are left from here on.
    let failure = table.execute(&order);
    Err(failure)
}

fn single_thread() -> Result<(), Failure> {
    let threads = during("counting threads", fs::read_dir("/proc/self/task"))?.count();
    if threads == 1 {
        return Ok(());
    }
    during("counting threads", Err(io::Error::other(format!("{threads} threads run already"))))
}

/// Forks, with `flags` added. Returns the child's number to the parent.
fn split(flags: libc::c_int) -> io::Result<Option<i32>> {
    // SAFETY: without CLONE_VM the child has its own copy of the memory, and a
    // null stack means that it goes on where we are. There is a single thread,
    // so no lock can be held by one that the child lacks. The C library's idea
    // of the thread's number is stale in the child, which uses nothing that
    // depends on it before it executes another program or ends.
    let result = unsafe {
        libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0usize, 0usize, 0usize, 0usize)
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => i32::try_from(pid).map(Some).map_err(io::Error::other),
    }
}
