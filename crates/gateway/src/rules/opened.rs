//! What an operator opens, as it is written in the configuration.

use std::str::FromStr;

use domain::{allow::Scheme, host::Authority};

use super::{Exception, Upstream};

/// Why a text opens nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOpening {
    /// Not exactly a host and a port.
    #[error("{0:?} is not HOST:PORT; each exception is exactly one host and one port")]
    Exception(String),
    /// Not a name and where it leads.
    #[error(
        "{0:?} is not NAME=URL; a name has 1 to 32 characters a-z, 0-9 and -, \
         a URL is http:// or https:// with a host and perhaps a port and a path"
    )]
    Upstream(String),
}

impl FromStr for Exception {
    type Err = InvalidOpening;

    fn from_str(raw: &str) -> Result<Self, InvalidOpening> {
        match raw.parse() {
            Ok(Authority { host, port: Some(port) }) => Ok(Self { host, port }),
            Ok(Authority { port: None, .. }) | Err(_) => {
                Err(InvalidOpening::Exception(raw.to_owned()))
            }
        }
    }
}

impl FromStr for Upstream {
    type Err = InvalidOpening;

    fn from_str(raw: &str) -> Result<Self, InvalidOpening> {
        upstream(raw).ok_or_else(|| InvalidOpening::Upstream(raw.to_owned()))
    }
}

fn upstream(raw: &str) -> Option<Upstream> {
    let (name, url) = raw.split_once('=')?;
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 32 || !name.chars().all(letter) {
        return None;
    }
    let (scheme, rest) = match url.split_once("://")? {
        ("https", rest) => (Scheme::Https, rest),
        ("http", rest) => (Scheme::Http, rest),
        _ => return None,
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let base = path.trim_end_matches('/');
    // What a path may be without a second reading: no query, no dots, no escapes.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~/".contains(c);
    let segments = base.split('/').skip(1);
    if !base.chars().all(plain) || segments.into_iter().any(|part| ["", ".", ".."].contains(&part))
    {
        return None;
    }
    let Authority { host, port } = authority.parse().ok()?;
    let port = port.unwrap_or(scheme.port());
    Some(Upstream { name: name.to_owned(), scheme, host, port, base: base.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U24: an exception is one host and one port.
    #[test]
    fn an_exception_is_one_host_and_one_port() {
        let exception: Exception = "DB.internal.:5432".parse().unwrap();
        assert_eq!((exception.host.to_string().as_str(), exception.port), ("db.internal", 5432));
        for raw in ["", "db.internal", "*.internal:1", "10.0.0.0/8:1", "db:0", "http://db:80"] {
            assert!(raw.parse::<Exception>().is_err(), "{raw:?}");
        }
    }

    #[test]
    fn an_upstream_is_a_name_and_a_url() {
        let upstream: Upstream = "model=https://llm.internal:8443/v1/".parse().unwrap();
        assert_eq!(upstream.name, "model");
        assert_eq!((upstream.scheme, upstream.port), (Scheme::Https, 8443));
        assert_eq!(upstream.base, "/v1");
        let plain: Upstream = "a-1=http://10.0.0.1".parse().unwrap();
        assert_eq!((plain.port, plain.base.as_str()), (80, ""));
        for raw in [
            "model",
            "=http://a",
            "Model=http://a",
            "a b=http://a",
            "m=ftp://a",
            "m=a",
            "m=http://",
            "m=http://u:p@a",
            "m=http://a/../b",
            "m=http://a/%2e",
            "m=http://a/?q",
            "m=http://a//b",
        ] {
            assert!(raw.parse::<Upstream>().is_err(), "{raw:?}");
        }
    }
}
