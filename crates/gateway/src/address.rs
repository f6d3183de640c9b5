//! Which addresses are public.
//!
//! Everything that is not plainly a public unicast address is refused: the
//! special-purpose ranges of both families, whatever lies outside the part of
//! IPv6 that is given out, and this host's own addresses. An IPv6 address with
//! an IPv4 address inside is decoded first and the inner one is judged too (U25),
//! so that no tunnel or translator of the network leads where the plain address
//! could not.

mod own;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

pub use own::Own;

/// Why an address is not public: the range it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Internal {
    range: &'static str,
    inside: Option<&'static str>,
}

impl fmt::Display for Internal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inside {
            Some(inside) => write!(f, "{inside}, inside {}", self.range),
            None => f.write_str(self.range),
        }
    }
}

/// Says whether an address is public, and not one of `own`.
pub fn judge(address: IpAddr, own: &Own) -> Result<(), Internal> {
    let address = address.to_canonical();
    if own.has(address) {
        return Err(Internal { range: "an address of this host", inside: None });
    }
    match address {
        IpAddr::V4(address) => v4(address).map_or(Ok(()), refuse),
        IpAddr::V6(address) => v6(address, own),
    }
}

fn refuse(range: &'static str) -> Result<(), Internal> {
    Err(Internal { range, inside: None })
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    let bits = u32::from(address);
    let within = |(network, length, _): &&(Ipv4Addr, u32, &'static str)| {
        (bits ^ u32::from(*network)) >> (32 - length) == 0
    };
    V4.iter().find(within).map(|(_, _, name)| *name)
}

fn v6(address: Ipv6Addr, own: &Own) -> Result<(), Internal> {
    let bits = u128::from(address);
    let within = |(network, length, _, _): &&(Ipv6Addr, u32, &'static str, Inner)| {
        (bits ^ u128::from(*network)) >> (128 - length) == 0
    };
    let Some((_, _, range, inner)) = V6.iter().find(within) else {
        // 2000::/3 is what is given out; the table names what in it is not.
        return if bits >> 125 == 1 { Ok(()) } else { refuse("unassigned IPv6") };
    };
    let inside = match inner {
        Inner::None => return refuse(range),
        Inner::Last => bits as u32,
        Inner::Second => (bits >> 80) as u32,
        Inner::Inverted => !(bits as u32),
    };
    let inside = Ipv4Addr::from(inside);
    let judged = match own.has(inside.into()) {
        true => Some("an address of this host"),
        false => v4(inside),
    };
    match judged {
        Some(name) => Err(Internal { range, inside: Some(name) }),
        // A translator of the network in front of a public address is the one
        // way in which a host without IPv4 reaches it.
        None if *range == NAT64 => Ok(()),
        None => refuse(range),
    }
}

/// Where an IPv4 address is inside an IPv6 one.
#[derive(Clone, Copy)]
enum Inner {
    None,
    /// The last 32 bits.
    Last,
    /// Behind the first 16 bits.
    Second,
    /// The last 32 bits, each turned over.
    Inverted,
}

const NAT64: &str = "NAT64 64:ff9b::/96";

const V4: [(Ipv4Addr, u32, &str); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network 0.0.0.0/8"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private 10.0.0.0/8"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared 100.64.0.0/10"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback 127.0.0.0/8"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local 169.254.0.0/16"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private 172.16.0.0/12"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "protocol assignments 192.0.0.0/24"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation 192.0.2.0/24"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4 relays 192.88.99.0/24"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private 192.168.0.0/16"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarks 198.18.0.0/15"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation 198.51.100.0/24"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation 203.0.113.0/24"),
    // The metadata service of one cloud is a public address.
    (Ipv4Addr::new(168, 63, 129, 16), 32, "cloud metadata 168.63.129.16"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast 224.0.0.0/4"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved 240.0.0.0/4"),
];

const V6: [(Ipv6Addr, u32, &str, Inner); 17] = [
    (Ipv6Addr::UNSPECIFIED, 128, "unspecified ::", Inner::None),
    (Ipv6Addr::LOCALHOST, 128, "loopback ::1", Inner::None),
    (at(0, 0, 0), 96, "IPv4-compatible ::/96", Inner::Last),
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, "IPv4-translated", Inner::Last),
    (at(0x64, 0xff9b, 0), 96, NAT64, Inner::Last),
    (at(0x64, 0xff9b, 1), 48, "local NAT64 64:ff9b:1::/48", Inner::Last),
    (at(0x100, 0, 0), 64, "discard-only 100::/64", Inner::None),
    (at(0x2001, 0, 0), 32, "Teredo 2001::/32", Inner::Inverted),
    (at(0x2001, 0, 0), 23, "protocol assignments 2001::/23", Inner::None),
    (at(0x2001, 0xdb8, 0), 32, "documentation 2001:db8::/32", Inner::None),
    (at(0x2002, 0, 0), 16, "6to4 2002::/16", Inner::Second),
    (at(0x3fff, 0, 0), 20, "documentation 3fff::/20", Inner::None),
    (at(0x5f00, 0, 0), 16, "segment routing 5f00::/16", Inner::None),
    (at(0xfc00, 0, 0), 7, "unique local fc00::/7", Inner::None),
    (at(0xfe80, 0, 0), 10, "link-local fe80::/10", Inner::None),
    (at(0xfec0, 0, 0), 10, "site-local fec0::/10", Inner::None),
    (at(0xff00, 0, 0), 8, "multicast ff00::/8", Inner::None),
];

const fn at(a: u16, b: u16, c: u16) -> Ipv6Addr {
    Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)
}

#[cfg(test)]
mod tests;
