//! Forking.
//!
//! A child is a copy of this one-threaded process, so it may do anything init
//! may, allocation included, until it becomes a program or ends. It is placed
//! in its control group by the fork itself: no instruction of it runs outside.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// From the kernel's `sched.h`; the C library's bindings give it no usable type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

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
