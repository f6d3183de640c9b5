//! The addresses that stand for names.
//!
//! A program that asks for a name gets an address of ours; a connection to it
//! then says which name is meant, and nothing was asked outside. A name keeps
//! its address for as long as this process lives. When all are given out, the
//! name that was not used for longest loses its own.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    rc::Rc,
};

/// Names at the same time. Each costs a few hundred bytes of what is kept back
/// for the guest's own processes.
const MOST: u32 = 32_768;

/// 198.18.0.0/15, which nobody routes: it is set aside for measuring devices.
const BASE4: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// fd63:6f6c:6466::/64, of the addresses that belong to nobody else.
const BASE6: u128 = 0xfd63_6f6c_6466_0000_0000_0000_0000_0000;

/// The first address, which stands for no name.
pub(crate) fn first4() -> Ipv4Addr {
    Ipv4Addr::from_bits(BASE4)
}

/// The first address, which stands for no name.
pub(crate) fn first6() -> Ipv6Addr {
    Ipv6Addr::from_bits(BASE6)
}

/// Names and their addresses.
#[derive(Debug)]
pub(crate) struct Names {
    most: u32,
    by_name: HashMap<Rc<str>, u32>,
    by_number: HashMap<u32, Entry>,
    /// Numbers by when they were last used.
    by_use: BTreeMap<u64, u32>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    name: Rc<str>,
    used: u64,
}

impl Default for Names {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Names {
    fn new(most: u32) -> Self {
        Self {
            most,
            by_name: HashMap::new(),
            by_number: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
        }
    }

    /// The addresses of a name, which is lowercase and has no dot at its end.
    pub(crate) fn addresses(&mut self, name: &str) -> (Ipv4Addr, Ipv6Addr) {
        let number = match self.by_name.get(name) {
            Some(number) => *number,
            None => self.give_out(name),
        };
        self.touch(number);
        (Ipv4Addr::from_bits(BASE4 + number), Ipv6Addr::from_bits(BASE6 + u128::from(number)))
    }

    /// The name that an address stands for.
    pub(crate) fn name(&mut self, address: IpAddr) -> Option<Rc<str>> {
        let number = match address {
            IpAddr::V4(address) => address.to_bits().checked_sub(BASE4)?,
            IpAddr::V6(address) => address.to_bits().checked_sub(BASE6)?.try_into().ok()?,
        };
        let name = self.by_number.get(&number)?.name.clone();
        self.touch(number);
        Some(name)
    }

    fn give_out(&mut self, name: &str) -> u32 {
        let taken = self.by_number.len() as u32;
        let number = if taken < self.most {
            // Number 0 is the address of no name.
            taken + 1
        } else {
            self.take_oldest().unwrap_or(1)
        };
        let name: Rc<str> = name.into();
        self.by_name.insert(name.clone(), number);
        self.by_number.insert(number, Entry { name, used: 0 });
        number
    }

    fn take_oldest(&mut self) -> Option<u32> {
        let (_, number) = self.by_use.pop_first()?;
        let entry = self.by_number.remove(&number)?;
        self.by_name.remove(&entry.name);
        Some(number)
    }

    fn touch(&mut self, number: u32) {
        self.clock += 1;
        if let Some(entry) = self.by_number.get_mut(&number) {
            self.by_use.remove(&entry.used);
            entry.used = self.clock;
            self.by_use.insert(self.clock, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// U29: one address for each name, in both families, for life.
    #[test]
    fn a_name_keeps_its_addresses() {
        let mut names = Names::default();
        let first = names.addresses("a.test");
        assert_eq!(first, ("198.18.0.1".parse().unwrap(), "fd63:6f6c:6466::1".parse().unwrap()));
        assert_ne!(names.addresses("b.test"), first);
        assert_eq!(names.addresses("a.test"), first);
        assert_eq!(names.name(first.0.into()).as_deref(), Some("a.test"));
        assert_eq!(names.name(first.1.into()).as_deref(), Some("a.test"));
    }

    #[test]
    fn other_addresses_stand_for_nothing() {
        let mut names = Names::default();
        names.addresses("a.test");
        for address in [
            "198.18.0.0",
            "198.18.0.2",
            "198.17.255.255",
            "8.8.8.8",
            "::1",
            "fd63:6f6c:6466::",
            "fd63:6f6c:6466:1::1",
            "fd63:6f6c:6466::1:0:1",
        ] {
            assert_eq!(names.name(address.parse().unwrap()), None, "{address}");
        }
    }

    proptest! {
        /// G-05: however many names are asked for, so many are remembered, those
        /// that were used last, and an address never stands for two.
        #[test]
        fn only_the_latest_are_remembered(asked in prop::collection::vec(0_u8..12, 0..200)) {
            let mut names = Names::new(4);
            let mut latest: Vec<u8> = Vec::new();
            for name in asked {
                let (v4, v6) = names.addresses(&name.to_string());
                latest.retain(|known| *known != name);
                latest.push(name);
                if latest.len() > 4 {
                    latest.remove(0);
                }
                let expected: Rc<str> = name.to_string().into();
                prop_assert_eq!(names.name(v4.into()), Some(expected.clone()));
                prop_assert_eq!(names.name(v6.into()), Some(expected));
                prop_assert!(names.by_number.len() <= 4 && names.by_use.len() <= 4);
                let mut known: Vec<u8> =
                    names.by_name.keys().map(|name| name.parse().unwrap()).collect();
                known.sort_unstable();
                let mut expected = latest.clone();
                expected.sort_unstable();
                prop_assert_eq!(known, expected);
            }
        }
    }
}
