//! The sockets behind the capture, made as root because the relay may not.
//!
//! They answer in the name of any address. Those of the capture have an address
//! that no program can bind or reach, so a program's own server never collides
//! with them; the resolver also listens on 127.0.0.1, for `resolv.conf`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

use super::{
    lookup::{DNS, SLOTS, UDP, V6},
    netlink::Family,
};
use crate::relay::names;

/// Where nothing else listens.
const PORT: u16 = 1;
const BACKLOG: i32 = 256;

/// All of them, by the slot of the program.
pub(super) fn all() -> io::Result<[OwnedFd; SLOTS]> {
    let made = (0..SLOTS).map(|slot| {
        let address = address(slot);
        let family = if slot & V6 != 0 { Family::V6 } else { Family::V4 };
        let kind = if slot & UDP != 0 { SocketType::DGRAM } else { SocketType::STREAM };
        one(family, kind, address).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        })
    });
    let made: Vec<OwnedFd> = made.collect::<io::Result<_>>()?;
    made.try_into().map_err(|_| io::Error::other("sockets are missing"))
}

fn address(slot: usize) -> SocketAddr {
    let ip: IpAddr = match (slot & V6 != 0, slot & DNS != 0) {
        (false, true) => Ipv4Addr::LOCALHOST.into(),
        (false, false) => names::first4().into(),
        (true, _) => names::first6().into(),
    };
    SocketAddr::new(ip, if slot & DNS != 0 { 53 } else { PORT })
}

fn one(family: Family, kind: SocketType, address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = transparent(family, kind)?;
    bind(&socket, &address)?;
    if kind == SocketType::STREAM {
        listen(&socket, BACKLOG)?;
    } else {
        // Where a datagram was going comes with it.
        match family {
            Family::V4 => switch_on(&socket, libc::SOL_IP, libc::IP_RECVORIGDSTADDR)?,
            Family::V6 => switch_on(&socket, libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR)?,
        }
    }
    Ok(socket)
}

/// A socket for the datagrams between a program and one address outside, which
/// answers in the name of that address.
pub(in crate::init) fn flow(outside: SocketAddr, program: SocketAddr) -> io::Result<OwnedFd> {
    let family = if outside.is_ipv4() { Family::V4 } else { Family::V6 };
    let socket = transparent(family, SocketType::DGRAM)?;
    // Many programs may talk to one address.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &outside)?;
    connect(&socket, &program)?;
    Ok(socket)
}

fn transparent(family: Family, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match family {
        Family::V4 => {
            let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
            switch_on(&socket, libc::SOL_IP, libc::IP_TRANSPARENT)?;
            Ok(socket)
        }
        Family::V6 => {
            let socket = socket_with(AddressFamily::INET6, kind, flags, None)?;
            sockopt::set_ipv6_v6only(&socket, true)?;
            switch_on(&socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT)?;
            Ok(socket)
        }
    }
}

fn switch_on(socket: &OwnedFd, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe one number, which outlives the
    // call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            std::mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_resolver_can_be_reached_by_its_own_address() {
        for slot in 0..SLOTS {
            let address = address(slot);
            assert_eq!(address.is_ipv6(), slot & V6 != 0);
            assert_eq!(address.port(), if slot & DNS != 0 { 53 } else { PORT });
            let near = address.ip().is_loopback();
            assert_eq!(near, slot & DNS != 0 && slot & V6 == 0, "{address}");
        }
    }
}
