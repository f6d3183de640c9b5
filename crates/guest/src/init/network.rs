//! Loopback, the only network device there is.

use std::{io, os::fd::AsRawFd as _};

use rustix::net::{AddressFamily, SocketType};

/// Brings `lo` up; the kernel gives it 127.0.0.1 and ::1.
pub(super) fn loopback() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: all-zero bytes are a valid `ifreq`, a plain structure of the kernel.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *slot = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the descriptor is open and the request outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Changes what programs inside see.
pub(super) async fn change(
    _: &super::Init,
    network: guest_protocol::control::Network,
) -> io::Result<()> {
    match network.mode {
        guest_protocol::control::Mode::Off => Ok(()),
        mode => Err(io::Error::other(format!("mode {mode:?} cannot be set up"))),
    }
}
