//! Terminals for processes.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
};

use rustix::{
    fs::{Gid, Uid},
    pty::OpenptFlags,
    termios::Winsize,
};

/// Both ends of a terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    /// Ours.
    pub(super) master: OwnedFd,
    /// The process's three streams.
    pub(super) slave: OwnedFd,
}

/// Opens a terminal of a size that belongs to an account.
pub(super) fn open(uid: u32, cols: u16, rows: u16) -> io::Result<Terminal> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // By descriptor, not by name: the name may lead anywhere by now.
    // SAFETY: the descriptor is open and the argument is a number.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if slave < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor just above; nobody else owns it.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    let size = Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&slave, size)?;
    let owner = Uid::from_raw(uid);
    rustix::fs::fchown(slave.as_fd(), Some(owner), None::<Gid>)?;
    Ok(Terminal { master, slave })
}
