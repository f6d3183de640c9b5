//! This host's own addresses, which may be public and are still not for guests.

use std::{
    collections::HashSet,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A set of addresses that belong to this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own(HashSet<IpAddr>);

impl Own {
    /// Exactly these.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self(addresses.into_iter().map(|address| address.to_canonical()).collect())
    }

    /// Those that the kernel answers to in this network namespace.
    pub fn of_this_host() -> io::Result<Self> {
        let mut own = local_v4(&fs::read_to_string("/proc/net/fib_trie")?);
        // A kernel without IPv6 has no such file, and no such address.
        match fs::read_to_string("/proc/net/if_inet6") {
            Ok(table) => own.extend(local_v6(&table)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self(own))
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

/// An address stands on the line above its `/32 host LOCAL`.
fn local_v4(table: &str) -> HashSet<IpAddr> {
    let mut own = HashSet::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in table.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line.ends_with("/32 host LOCAL") {
            own.extend(last.map(IpAddr::from));
        }
    }
    own
}

/// 32 hexadecimal digits begin each line.
fn local_v6(table: &str) -> HashSet<IpAddr> {
    let address = |line: &str| {
        let bits = u128::from_str_radix(line.get(..32)?, 16).ok()?;
        Some(IpAddr::from(Ipv6Addr::from(bits)))
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_kernel_are_read() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.0\n        /24 link UNICAST\n     \
                    |-- 192.0.2.7\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        assert_eq!(local_v4(trie), HashSet::from(["192.0.2.7".parse().unwrap()]));
        let table = "20010db8000000000000000000000001 02 40 00 80 eth0\nshort\n";
        assert_eq!(local_v6(table), HashSet::from(["2001:db8::1".parse().unwrap()]));
    }

    #[test]
    fn this_host_has_a_loopback_address() {
        assert!(Own::of_this_host().unwrap().has(Ipv4Addr::LOCALHOST.into()));
    }
}
