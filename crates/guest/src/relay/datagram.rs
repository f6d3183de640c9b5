//! Datagrams with where they were going, and answers from there.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd as _, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// A UDP socket that takes datagrams to any address.
#[derive(Debug)]
pub(crate) struct Datagrams(AsyncFd<OwnedFd>);

/// Who sent a datagram, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Between {
    pub(crate) program: SocketAddr,
    pub(crate) outside: SocketAddr,
}

/// Room for the addresses that come with a datagram, as the kernel aligns them.
#[repr(C, align(8))]
struct Control([u8; 128]);

impl Datagrams {
    /// Takes a socket that init made.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: the socket is owned by what is registered, so its descriptor
        // stays open and the same for as long as that lives.
        let socket = unsafe {
            AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE)
        }?;
        Ok(Self(socket))
    }

    /// The next datagram; how long it is.
    pub(crate) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Between)> {
        self.0.async_io(Interest::READABLE, |socket| receive(socket, buffer)).await
    }

    /// Answers in the name of the address that was asked.
    pub(crate) async fn answer(&self, bytes: &[u8], between: Between) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, |socket| answer(socket, bytes, between)).await
    }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Between)> {
    // SAFETY: all-zero bytes are valid for these plain structures of the kernel.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut control = Control([0; 128]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = std::mem::size_of_val(&name) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: every pointer of the message is to something above, with its size,
    // that outlives the call.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let lost = || io::Error::new(io::ErrorKind::InvalidData, "a datagram without addresses");
    let program = address(bytes_of(&name)).ok_or_else(lost)?;
    // SAFETY: the kernel has filled the message in; the macro looks for the first
    // header in its control buffer, which is alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    let mut outside = None;
    while !header.is_null() {
        // SAFETY: the macro gave a header inside the control buffer, and the
        // kernel put the data it announces behind it.
        let (kind, data) = unsafe { ((*header).cmsg_type, libc::CMSG_DATA(header)) };
        if kind == libc::IP_ORIGDSTADDR || kind == libc::IPV6_ORIGDSTADDR {
            let start = data.addr() - control.0.as_ptr().addr();
            outside = control.0.get(start..).and_then(address);
        }
        // SAFETY: as above; the macro checks against the buffer's length.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((n, Between { program, outside: outside.ok_or_else(lost)? }))
}

fn bytes_of(name: &libc::sockaddr_storage) -> &[u8] {
    // SAFETY: a plain structure, all of whose bytes were set, seen as bytes for
    // as long as it is borrowed.
    unsafe { std::slice::from_raw_parts((&raw const *name).cast(), std::mem::size_of_val(name)) }
}

/// Reads a socket address of the kernel.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0).into())
        }
        _ => None,
    }
}

fn answer(socket: &OwnedFd, bytes: &[u8], between: Between) -> io::Result<()> {
    let mut control = Control([0; 128]);
    let (level, kind, data) = source(between.outside.ip());
    let mut name = raw_address(between.program);
    // SAFETY: all-zero bytes are valid for this plain structure of the kernel.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = name.len() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the macros compute sizes from numbers.
    let (length, space) =
        unsafe { (libc::CMSG_LEN(data.len() as _), libc::CMSG_SPACE(data.len() as _)) };
    message.msg_controllen = space as _;
    // SAFETY: the control buffer is aligned for a header and larger than `space`,
    // so header and data lie inside it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = length as _;
        std::ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(header), data.len());
    }
    // SAFETY: every pointer of the message is to something above, with its size,
    // that outlives the call; the kernel only reads.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The control message that says where an answer comes from.
fn source(ip: IpAddr) -> (libc::c_int, libc::c_int, Vec<u8>) {
    match ip {
        // Interface, source, and a field that is not used for sending.
        IpAddr::V4(ip) => {
            (libc::SOL_IP, libc::IP_PKTINFO, [&[0; 4], &ip.octets()[..], &[0; 4]].concat())
        }
        // Source and interface.
        IpAddr::V6(ip) => {
            (libc::SOL_IPV6, libc::IPV6_PKTINFO, [&ip.octets()[..], &[0; 4]].concat())
        }
    }
}

fn raw_address(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => {
            let family = (libc::AF_INET as u16).to_ne_bytes();
            [&family[..], &port, &ip.octets(), &[0; 8]].concat()
        }
        IpAddr::V6(ip) => {
            let family = (libc::AF_INET6 as u16).to_ne_bytes();
            [&family[..], &port, &[0; 4], &ip.octets(), &[0; 4]].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_itself() {
        for text in ["198.18.0.1:53", "[2001:db8::1]:443"] {
            let expected: SocketAddr = text.parse().unwrap();
            assert_eq!(address(&raw_address(expected)), Some(expected));
        }
        assert_eq!(address(&[1, 0, 0, 0]), None);
        assert_eq!(address(&[2, 0, 0, 53, 1]), None);
    }
}
