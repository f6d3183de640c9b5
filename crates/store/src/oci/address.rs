//! Which addresses are of this network and not of the public one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 networks that are not public: first address and prefix length.
const V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
    (Ipv4Addr::new(255, 255, 255, 255), 32),
];

/// Whether `address` is anything but a public unicast address.
pub(super) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_internal_v4(address),
        IpAddr::V6(address) => is_internal_v6(address),
    }
}

fn is_internal_v4(address: Ipv4Addr) -> bool {
    let bits = u32::from(address);
    V4.iter().any(|(network, length)| {
        let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
        bits & mask == u32::from(*network) & mask
    })
}

/// Only 2000::/3 is public, and of that not what carries or documents others.
fn is_internal_v6(address: Ipv6Addr) -> bool {
    if let Some(v4) = address.to_ipv4_mapped() {
        return is_internal_v4(v4);
    }
    let segments = address.segments();
    let public = segments[0] & 0xe000 == 0x2000;
    let special = match segments {
        [0x2001, second, ..] => second < 0x0200 || second == 0x0db8,
        [0x2002, ..] => true,
        [0x3fff, second, ..] => second < 0x1000,
        _ => false,
    };
    !public || special
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U38: no address of the host's own network passes for a public one.
    #[test]
    fn addresses_that_are_not_public_are_internal() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "ff02::1",
        ] {
            assert!(is_internal(text.parse().expect("an address")), "{text}");
        }
        for text in ["1.1.1.1", "9.9.9.9", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"] {
            assert!(!is_internal(text.parse().expect("an address")), "{text}");
        }
    }
}
