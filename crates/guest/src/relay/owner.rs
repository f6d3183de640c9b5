//! Whose socket a client is.
//!
//! The kernel is asked for the socket at the other end of a loopback connection.
//! One that its program has closed already belongs to nobody; the kernel would
//! say root.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// The header of every message.
const HEADER: usize = 16;
/// From the kernel's `inet_diag.h` and `sock_diag.h`.
const BY_FAMILY: u16 = 20;
const MESSAGE: usize = 72;

/// The kernel's list of sockets.
#[derive(Debug)]
pub(crate) struct Owners(OwnedFd);

/// What a socket speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

impl Owners {
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = Some(netlink::SOCK_DIAG);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?))
    }

    /// The account of the socket at `client` that speaks to `server`, unless it
    /// cannot be found.
    pub(crate) fn of(
        &self,
        protocol: Protocol,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<u32> {
        send(&self.0, &question(protocol, client, server), SendFlags::empty()).ok()?;
        // The kernel has answered before it returns.
        let mut answer = [0; 1024];
        let n = recv(&self.0, &mut answer, RecvFlags::empty()).ok()?.0;
        account(answer.get(..n)?)
    }
}

fn question(protocol: Protocol, client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    // Of UDP the kernel wants the two the other way round, "for historical reasons".
    let (client, server) = match protocol {
        Protocol::Tcp => (client, server),
        Protocol::Udp => (server, client),
    };
    let family = if client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let number = match protocol {
        Protocol::Tcp => libc::IPPROTO_TCP,
        Protocol::Udp => libc::IPPROTO_UDP,
    } as u8;
    let mut question = vec![0; 4];
    question.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    question.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    question.extend_from_slice(&[0; 8]);
    question.extend_from_slice(&[family, number, 0, 0]);
    // In any state.
    question.extend_from_slice(&[0xff; 4]);
    question.extend_from_slice(&client.port().to_be_bytes());
    question.extend_from_slice(&server.port().to_be_bytes());
    question.extend_from_slice(&words(client.ip()));
    question.extend_from_slice(&words(server.ip()));
    // On any interface, whatever its cookie.
    question.extend_from_slice(&[0; 4]);
    question.extend_from_slice(&[0xff; 8]);
    let length = question.len() as u32;
    question[..4].copy_from_slice(&length.to_ne_bytes());
    question
}

fn words(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut words = [0; 16];
            words[..4].copy_from_slice(&address.octets());
            words
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Reads the account out of an answer.
fn account(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let message = answer.get(HEADER..HEADER + MESSAGE)?;
    let word = |at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?));
    // No file stands for it any more: its program is gone, or it waits to be.
    if kind != BY_FAMILY || word(68)? == 0 {
        return None;
    }
    word(64)
}

/// Both families say the same address of this machine in two ways.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// U33: the account is the kernel's word, for each family and protocol.
    #[test]
    fn the_kernel_knows_whose_a_socket_is() {
        let owners = Owners::open().unwrap();
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let there = server.local_addr().unwrap();
            assert_eq!(owners.of(Protocol::Tcp, peer, there), Some(own()), "{ip}");
            drop(client);
            assert_eq!(owners.of(Protocol::Tcp, peer, there), None, "it is closed");

            let client = UdpSocket::bind((ip, 0)).unwrap();
            let address = client.local_addr().unwrap();
            assert_eq!(owners.of(Protocol::Udp, address, there), Some(own()), "{ip}");
            drop(client);
            assert_eq!(owners.of(Protocol::Udp, address, there), None);
        }
    }

    #[test]
    fn an_answer_that_is_cut_short_names_nobody() {
        for n in 0..HEADER + MESSAGE {
            let mut answer = vec![1; n];
            if n >= 6 {
                answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
            }
            assert_eq!(account(&answer), None);
        }
    }
}
