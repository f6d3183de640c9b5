//! A host and the port beside it, as in `CONNECT` and `Host`.

use std::{fmt, str::FromStr};

use super::{Host, InvalidHost};

/// A host and, where one was written, a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Authority {
    /// Where.
    pub host: Host,
    /// The port; never 0.
    pub port: Option<u16>,
}

/// Why a text is no host with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAuthority {
    /// The part before the port.
    #[error(transparent)]
    Host(#[from] InvalidHost),
    /// The part behind the colon.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl FromStr for Authority {
    type Err = InvalidAuthority;

    /// Reads `host` or `host:port`. An IPv6 address needs its brackets here, and
    /// there is no place for a user.
    fn from_str(raw: &str) -> Result<Self, InvalidAuthority> {
        let (host, port) = match raw.rfind(']') {
            Some(end) => {
                let (host, rest) = raw.split_at(end + 1);
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(InvalidAuthority::Port),
                }
            }
            None => match raw.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (raw, None),
            },
        };
        Ok(Self { host: host.parse()?, port: port.map(number).transpose()? })
    }
}

fn number(raw: &str) -> Result<u16, InvalidAuthority> {
    // The library would read a sign too.
    if raw.len() > 5 || !raw.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidAuthority::Port);
    }
    raw.parse().ok().filter(|port| *port != 0).ok_or(InvalidAuthority::Port)
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => self.host.fmt(f),
        }
    }
}
