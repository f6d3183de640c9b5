//! Pid 1 of a machine that must not outlive its maker.
//!
//! It holds the reading end of a pipe whose writing end only the maker has. When
//! the maker is gone the pipe says so, the watcher ends, and the kernel ends
//! every process of the namespace with it. It sits in the empty root without a
//! single capability, and as another user than the machine, which therefore
//! cannot reach it.

use std::{
    os::fd::{AsFd, BorrowedFd},
    process::ExitCode,
};

use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions},
};

use super::{Failure, during, enter};

/// The descriptor of the pipe from the maker.
pub(in crate::qemu) const LIFE: i32 = 9;

/// Watches until the machine or its maker is gone.
pub(super) fn watch(machine: i32) -> Result<ExitCode, Failure> {
    let pid = Pid::from_raw(machine).ok_or(rustix::io::Errno::SRCH);
    let pid = during("watching the machine", pid)?;
    let machine =
        during("watching the machine", rustix::process::pidfd_open(pid, PidfdFlags::empty()))?;
    let machine = during("watching the machine", enter::park(machine))?;
    enter::renounce_capabilities()?;
    // SAFETY: the order put the pipe at this number and it was left open when
    // the others were closed; it stays open until this process ends.
    let life = unsafe { BorrowedFd::borrow_raw(LIFE) };
    loop {
        let mut waits =
            [PollFd::new(&life, PollFlags::empty()), PollFd::new(&machine, PollFlags::IN)];
        match rustix::event::poll(&mut waits, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return during("watching the machine", Err(error)),
        }
        if !waits[0].revents().is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        if !waits[1].revents().is_empty() {
            let ended =
                rustix::process::waitid(WaitId::PidFd(machine.as_fd()), WaitIdOptions::EXITED);
            let code = ended.ok().flatten().and_then(|status| {
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                u8::try_from(status.exit_status().or(signal)?).ok()
            });
            return Ok(ExitCode::from(code.unwrap_or(1)));
        }
    }
}
