//! Handles on processes: wait for an end, and take the result.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{WaitId, WaitIdOptions, WaitIdStatus},
};
use tokio::io::{Interest, unix::AsyncFd};

/// Readable once the process has ended.
pub(super) fn watch(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the handle is open and owned by the value that is made here, which
    // gives the same number for as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?)
}

/// Waits for the end. False if it did not come.
pub(super) fn wait(process: &OwnedFd, bound: Duration) -> io::Result<bool> {
    let mut waits = [PollFd::new(process, PollFlags::IN)];
    let bound = Timespec::try_from(bound).map_err(io::Error::other)?;
    Ok(rustix::event::poll(&mut waits, Some(&bound))? > 0)
}

/// Takes the result of a process that has ended, so that no trace of it stays.
/// None if it is not our child, in which case init takes it, or was taken before.
pub(super) fn take_status(process: &OwnedFd) -> Option<WaitIdStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    rustix::process::waitid(WaitId::PidFd(process.as_fd()), options).ok().flatten()
}
