//! Under which names the server may be addressed.
//!
//! A page in a browser can make its own name resolve to 127.0.0.1 and then talk
//! to whatever listens there (DNS rebinding). The `Host` header still holds the
//! page's name, so on loopback only loopback's own names and configured ones are
//! answered.

use std::net::{IpAddr, SocketAddr};

/// Which `Host` values are answered.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    loopback: bool,
    names: Vec<String>,
}

impl Hosts {
    /// The rule for a listener at `address` that also goes by `names`.
    pub(crate) fn new(address: SocketAddr, names: &[String]) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { loopback: address.ip().is_loopback(), names }
    }

    /// Whether a request that calls the server `host` is answered. A port in it
    /// does not count: a forwarded port is another number.
    pub(crate) fn allow(&self, host: &str) -> bool {
        let name = name_of(host);
        if self.names.contains(&name) {
            return true;
        }
        if self.loopback {
            return name == "localhost" || address_of(&name).is_some_and(|ip| ip.is_loopback());
        }
        // Without names there is nothing to compare with. With names, an address
        // is still fine: it cannot be rebound.
        self.names.is_empty() || address_of(&name).is_some()
    }
}

/// The lower-case name without port and final dot.
fn name_of(host: &str) -> String {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn address_of(name: &str) -> Option<IpAddr> {
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(listen: &str, names: &[&str], host: &str, expected: bool) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let rule = Hosts::new(listen.parse().unwrap(), &names);
        assert_eq!(rule.allow(host), expected, "{listen} {names:?} {host:?}");
    }

    #[test]
    fn on_loopback_only_loopback_and_configured_names_are_answered() {
        for host in ["localhost:7070", "127.0.0.1", "127.0.0.1:80", "[::1]:7070", "LOCALHOST."] {
            check("127.0.0.1:7070", &[], host, true);
        }
        for host in ["", "evil.example", "evil.example:7070", "127.0.0.1.evil.example", "10.0.0.1"]
        {
            check("127.0.0.1:7070", &[], host, false);
            check("[::1]:7070", &["box.example"], host, false);
        }
        check("127.0.0.1:7070", &["Box.Example"], "box.example:443", true);
    }

    #[test]
    fn elsewhere_names_are_compared_when_there_are_any() {
        check("0.0.0.0:7070", &[], "anything", true);
        check("0.0.0.0:7070", &["box.example"], "box.example", true);
        check("0.0.0.0:7070", &["box.example"], "10.0.0.1:7070", true);
        check("0.0.0.0:7070", &["box.example"], "evil.example", false);
    }
}
