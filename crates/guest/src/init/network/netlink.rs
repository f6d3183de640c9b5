//! Routes and rules of the kernel, over its own socket.
//!
//! One request and its answer at a time. What is added twice or removed twice is
//! as it should be, and no error: somebody who is root inside may have been here.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::relay::names;

/// The table that makes every address one of this machine.
const TABLE: u8 = 88;
/// `lo`, which is always the first.
const LOOPBACK: u32 = 1;
/// Of our rules, behind the kernel's own for its own addresses.
const PRIORITY: u32 = 88;

/// The family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// Both, because nothing may hold for one alone.
pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Something that can be there or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// In the table: every address is local.
    Everything,
    /// In the table: what has many receivers is not, and finds no other route.
    Groups,
    /// An address of `lo` beside the one it always has: the C library resolves
    /// no name of a family of which this machine has nothing but that.
    Address,
    /// TCP looks into the table.
    Tcp,
    /// UDP to port 53 does.
    Dns,
    /// All UDP does.
    Udp,
}

/// A socket to the kernel's routing.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        // Protocol 0 is that of routes.
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        Ok(Self(socket_with(family, SocketType::RAW, flags, None)?))
    }

    /// Makes it be there.
    pub(super) fn add(&self, family: Family, entry: Entry) -> io::Result<()> {
        const CREATE_NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        self.ask(family, entry, true, CREATE_NEW, &[libc::EEXIST])
    }

    /// Makes it not be there.
    pub(super) fn remove(&self, family: Family, entry: Entry) -> io::Result<()> {
        self.ask(family, entry, false, 0, &[libc::ENOENT, libc::ESRCH, libc::EADDRNOTAVAIL])
    }

    fn ask(
        &self,
        family: Family,
        entry: Entry,
        add: bool,
        flags: u16,
        fine: &[i32],
    ) -> io::Result<()> {
        let message = message(family, entry, add, flags);
        send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0; 512];
        let n = recv(&self.0, &mut answer, RecvFlags::empty())?.0;
        match error_of(&answer[..n]) {
            Some(0) => Ok(()),
            Some(errno) if fine.contains(&errno) => Ok(()),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::Error::other("the kernel's answer about routes makes no sense")),
        }
    }
}

/// The error number in an acknowledgement, 0 for success.
fn error_of(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let code = i32::from_ne_bytes(*answer.get(16..)?.first_chunk()?);
    (i32::from(kind) == libc::NLMSG_ERROR).then_some(code.checked_neg()?)
}

fn message(family: Family, entry: Entry, add: bool, flags: u16) -> Vec<u8> {
    let kind = match (entry, add) {
        (Entry::Everything | Entry::Groups, true) => libc::RTM_NEWROUTE,
        (Entry::Everything | Entry::Groups, false) => libc::RTM_DELROUTE,
        (Entry::Address, true) => libc::RTM_NEWADDR,
        (Entry::Address, false) => libc::RTM_DELADDR,
        (_, true) => libc::RTM_NEWRULE,
        (_, false) => libc::RTM_DELRULE,
    };
    let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut message = vec![0; 4];
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    // The sequence number and our address: there is one question at a time.
    message.extend_from_slice(&[0; 8]);
    match entry {
        Entry::Everything => everything(&mut message, family),
        Entry::Groups => groups(&mut message, family),
        Entry::Address => address(&mut message, family),
        Entry::Tcp => rule(&mut message, family, PRIORITY, libc::IPPROTO_TCP, None),
        Entry::Dns => rule(&mut message, family, PRIORITY + 1, libc::IPPROTO_UDP, Some(53)),
        Entry::Udp => rule(&mut message, family, PRIORITY + 2, libc::IPPROTO_UDP, None),
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

/// `local default dev lo src 127.0.0.1`, or `src ::1`: an answer to a program
/// must find the program, not the capture.
fn everything(message: &mut Vec<u8>, family: Family) {
    let scope = match family {
        Family::V4 => libc::RT_SCOPE_HOST,
        Family::V6 => libc::RT_SCOPE_UNIVERSE,
    };
    route(message, family, 0, scope, libc::RTN_LOCAL);
    attribute(message, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    match family {
        Family::V4 => {
            attribute(message, libc::RTA_PREFSRC, &Ipv4Addr::LOCALHOST.octets());
        }
        Family::V6 => {
            attribute(message, libc::RTA_PREFSRC, &Ipv6Addr::LOCALHOST.octets());
        }
    }
}

/// `throw 224.0.0.0/3`, which is multicast, broadcast and what is reserved, and
/// `throw ff00::/8`.
fn groups(message: &mut Vec<u8>, family: Family) {
    let (bits, prefix) = match family {
        Family::V4 => (3, &[224, 0, 0, 0][..]),
        Family::V6 => (8, &[255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]),
    };
    route(message, family, bits, libc::RT_SCOPE_UNIVERSE, libc::RTN_THROW);
    attribute(message, libc::RTA_DST, prefix);
}

fn route(message: &mut Vec<u8>, family: Family, bits: u8, scope: u8, kind: u8) {
    const PROTOCOL_STATIC: u8 = 4;
    let head = [number(family), bits, 0, 0, TABLE, PROTOCOL_STATIC, scope, kind];
    message.extend_from_slice(&head);
    message.extend_from_slice(&[0; 4]);
}

/// `127.0.0.2/8` and the first of our own addresses, on `lo`.
fn address(message: &mut Vec<u8>, family: Family) {
    const NO_DUPLICATE_CHECK: u8 = 2;
    let (bits, octets) = match family {
        Family::V4 => (8, vec![127, 0, 0, 2]),
        Family::V6 => (128, names::first6().octets().to_vec()),
    };
    let scope = libc::RT_SCOPE_HOST;
    message.extend_from_slice(&[number(family), bits, NO_DUPLICATE_CHECK, scope]);
    message.extend_from_slice(&LOOPBACK.to_ne_bytes());
    attribute(message, libc::IFA_LOCAL, &octets);
    attribute(message, libc::IFA_ADDRESS, &octets);
}

/// `from all ipproto … [dport …] lookup TABLE`.
fn rule(message: &mut Vec<u8>, family: Family, priority: u32, protocol: i32, port: Option<u16>) {
    // From the kernel's `fib_rules.h`.
    const TO_TABLE: u8 = 1;
    const FRA_PRIORITY: u16 = 6;
    const FRA_IP_PROTO: u16 = 22;
    const FRA_DPORT_RANGE: u16 = 24;
    message.extend_from_slice(&[number(family), 0, 0, 0, TABLE, 0, 0, TO_TABLE]);
    message.extend_from_slice(&[0; 4]);
    attribute(message, FRA_PRIORITY, &priority.to_ne_bytes());
    // Both numbers fit: they are 6 and 17.
    attribute(message, FRA_IP_PROTO, &[protocol as u8]);
    if let Some(port) = port {
        let [low, high] = port.to_ne_bytes();
        attribute(message, FRA_DPORT_RANGE, &[low, high, low, high]);
    }
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = (value.len() + 4) as u16;
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_its_length_and_holds_whole_words() {
        let rules = [Entry::Tcp, Entry::Dns, Entry::Udp];
        for entry in [Entry::Everything, Entry::Groups, Entry::Address].into_iter().chain(rules) {
            for family in FAMILIES {
                let message = message(family, entry, true, 0);
                assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
                assert_eq!(message.len() % 4, 0);
            }
        }
    }

    #[test]
    fn an_answer_that_is_cut_short_is_no_success() {
        assert_eq!(error_of(&[0; 10]), None);
        let mut answer = [0; 36];
        answer[4] = 2;
        assert_eq!(error_of(&answer), Some(0));
        answer[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        assert_eq!(error_of(&answer), Some(17));
    }
}
