//! Forking, and work that may hang.
//!
//! A child is a copy of this one-threaded process, so it may do anything init
//! may, allocation included, until it becomes a program or ends. It is placed
//! in its control group by the fork itself: no instruction of it runs outside.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

use tokio::time::timeout;

use super::Init;

/// From the kernel's `sched.h`; the C library's bindings give it no usable type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// How long work in a child may take. It is file work of microseconds; what
/// takes longer waits for a file system that the workload serves.
const LIMIT: Duration = Duration::from_secs(10);

/// Forks. The child runs `body` and ends with its result as exit code.
pub(super) fn fork(group: Option<BorrowedFd<'_>>, body: impl FnOnce() -> u8) -> io::Result<i32> {
    // SAFETY: all-zero bytes are a valid `clone_args`, a plain structure of numbers.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(group) = group {
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM this is fork(2): the child gets its own copy of
    // the memory and returns here on the same stack. The process has one thread,
    // so no lock is held by anyone who does not exist in the child.
    let result = unsafe {
        libc::syscall(libc::SYS_clone3, &arguments, std::mem::size_of::<libc::clone_args>())
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = body();
            // SAFETY: `_exit` takes a number and does not return. Nothing of the
            // parent's copied state is dropped or flushed.
            unsafe { libc::_exit(i32::from(code)) }
        }
        pid => Ok(pid as i32),
    }
}

/// Runs `work` in a child and waits for it, not longer than [`LIMIT`].
///
/// # Errors
/// What `work` returned, as text; or that it did not end.
pub(super) async fn run(
    init: &Init,
    what: &str,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let pid = fork(None, || match work() {
        Ok(()) => 0,
        Err(error) => {
            rustix::io::write(&writer, error.to_string().as_bytes()).ok();
            1
        }
    })?;
    drop(writer);
    let end = init.reaper.expect(pid);
    match timeout(LIMIT, end).await {
        Ok(Ok(status)) if status.exit_status() == Some(0) => Ok(()),
        Ok(_) => {
            let mut text = [0; 1024];
            let n = rustix::io::read(&reader, &mut text).unwrap_or(0);
            let text = String::from_utf8_lossy(&text[..n]).into_owned();
            Err(io::Error::other(format!("cannot {what}: {text}")))
        }
        Err(_) => {
            init.reaper.kill(pid);
            let text = format!("cannot {what}: no end after {} s", LIMIT.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}
