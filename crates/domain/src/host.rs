//! A destination's host in the one form that is matched, routed, logged and
//! written on the wire.
//!
//! Many texts name one host: other letter case, a dot at the end, full-width
//! digits, punycode, `0x7f.1` for `127.0.0.1`. Two parsers that read such a text
//! differently are how a list is passed, so it is read once, here, and what
//! passes has one spelling only: reading the canonical form gives the same host
//! again. Names follow UTS 46 as browsers apply it, numbers the URL standard.
//!
//! Refused, because somebody reads it differently: percent-encoding, IPv6 zones,
//! empty labels, characters that are no letter, digit, hyphen or underscore.
//!
//! Deliberately absent: whether a host may be reached ([`crate::allow`] matches
//! names, the gateway judges addresses).

mod authority;
mod number;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

pub use authority::{Authority, InvalidAuthority};

/// The longest text that is looked at; a name in canonical form has at most 253.
const MAX_TEXT: usize = 1024;

/// A host: a name, or an address as such.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name that has to be resolved.
    Name(Name),
    /// An address.
    Address(Address),
}

/// A DNS name: ASCII in lower case, without a dot at the end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// An address that is not an IPv4 address in IPv6 clothes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(IpAddr);

/// Why a text names no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// More than a name can have.
    #[error("the host is longer than a name can be")]
    Long,
    /// Somebody would decode it and somebody else would not.
    #[error("the host is percent-encoded; write it in plain letters")]
    Encoded,
    /// Not a name by UTS 46, or with a character that no host has.
    #[error("the host is not a name: letters, digits, hyphens and underscores between dots")]
    Name,
    /// Ends in a number and is no IPv4 address.
    #[error("the host ends in a number and is no IPv4 address")]
    Number,
    /// Looks like an IPv6 address and is none; zones are not accepted.
    #[error("the host is not an IPv6 address (a zone is not accepted)")]
    Ipv6,
}

impl Host {
    /// The name, where it is one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    /// The address, where it is one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Address(address) => Some(address.get()),
        }
    }
}

impl Name {
    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The labels, first to last.
    pub fn labels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }

    /// Whether this name lies below `parent`, compared label by label. No name
    /// lies below itself.
    pub fn is_below(&self, parent: &Name) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl Address {
    /// The address.
    pub fn get(self) -> IpAddr {
        self.0
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        Self(address.to_canonical())
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.into())
    }
}

impl From<Name> for Host {
    fn from(name: Name) -> Self {
        Self::Name(name)
    }
}

impl FromStr for Host {
    type Err = InvalidHost;

    /// Reads a host as it stands in a URL. An IPv6 address may lack its brackets.
    fn from_str(raw: &str) -> Result<Self, InvalidHost> {
        if raw.is_empty() {
            return Err(InvalidHost::Empty);
        }
        if raw.len() > MAX_TEXT {
            return Err(InvalidHost::Long);
        }
        if let Some(rest) = raw.strip_prefix('[') {
            return ipv6(rest.strip_suffix(']').ok_or(InvalidHost::Ipv6)?);
        }
        if raw.contains(':') {
            return ipv6(raw);
        }
        if raw.contains('%') {
            return Err(InvalidHost::Encoded);
        }
        let ascii = idna::domain_to_ascii_cow(raw.as_bytes(), idna::AsciiDenyList::URL)
            .map_err(|_| InvalidHost::Name)?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        if number::ends_in_one(name) {
            let address: Ipv4Addr = number::address(name).ok_or(InvalidHost::Number)?;
            return Ok(IpAddr::from(address).into());
        }
        checked(name).map(Self::Name)
    }
}

impl FromStr for Name {
    type Err = InvalidHost;

    fn from_str(raw: &str) -> Result<Self, InvalidHost> {
        match raw.parse()? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(InvalidHost::Name),
        }
    }
}

fn ipv6(raw: &str) -> Result<Host, InvalidHost> {
    let address: Ipv6Addr = raw.parse().map_err(|_| InvalidHost::Ipv6)?;
    Ok(IpAddr::from(address).into())
}

fn checked(name: &str) -> Result<Name, InvalidHost> {
    if name.is_empty() {
        return Err(InvalidHost::Empty);
    }
    if name.len() > 253 {
        return Err(InvalidHost::Long);
    }
    for label in name.split('.') {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_".contains(&c);
        if label.len() > 63 {
            return Err(InvalidHost::Long);
        }
        if label.is_empty()
            || label.starts_with('-')
            || label.ends_with('-')
            || !label.bytes().all(allowed)
        {
            return Err(InvalidHost::Name);
        }
    }
    Ok(Name(name.to_owned()))
}

impl fmt::Display for Host {
    /// The canonical form, an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Serialised as its canonical text, and read back through the same door.
macro_rules! as_text {
    ($($type:ty),+) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = String::deserialize(deserializer)?;
                raw.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

pub(crate) use as_text;

as_text!(Host, Name, Authority);

#[cfg(test)]
mod tests;
