//! What a list of permitted destinations may say, and what it covers.
//!
//! An entry is `[https://|http://]HOST[:PORT]`. Without a scheme it is `https`,
//! without a port it is the scheme's own. `HOST` is a name, an address, or
//! `*.NAME`, which stands for every name below `NAME`, however deep, and not for
//! `NAME` itself. A wildcard below which strangers can register is refused
//! (`*.com`, `*.co.uk`, and those of hosting companies): whoever lists it has
//! listed everybody.
//!
//! An entry of `https` covers TLS connections only; plain HTTP passes only where
//! an entry says `http://` (U26).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::host::{Authority, Host, InvalidAuthority, Name, as_text};

/// The most entries that one sandbox may have.
pub const MAX_ENTRIES: usize = 512;

/// One permitted destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pattern: Pattern,
    scheme: Scheme,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Pattern {
    Exactly(Host),
    Below(Name),
}

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// TLS.
    Https,
    /// Plain HTTP.
    Http,
}

/// Why a text is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntry {
    /// Another scheme.
    #[error("an entry begins with https://, http:// or the host")]
    Scheme,
    /// A path, a query or a user.
    #[error("an entry names a host and perhaps a port, no path, query or user")]
    Path,
    /// A wildcard that does not stand for the labels in front of a name.
    #[error("a wildcard is written as *.NAME and stands for every name below NAME")]
    Wildcard,
    /// A wildcard for names that belong to everybody.
    #[error("anybody can register a name that this wildcard covers; name the hosts instead")]
    Registry,
    /// The host or the port.
    #[error(transparent)]
    Authority(#[from] InvalidAuthority),
}

impl Entry {
    /// Whether it covers a destination.
    pub fn covers(&self, host: &Host, port: u16, scheme: Scheme) -> bool {
        self.scheme == scheme && self.port == port && self.names(host)
    }

    /// Whether it covers a host at some port.
    pub fn names(&self, host: &Host) -> bool {
        match &self.pattern {
            Pattern::Exactly(own) => own == host,
            Pattern::Below(parent) => host.name().is_some_and(|name| name.is_below(parent)),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }
}

impl Scheme {
    /// Its own port.
    pub fn port(self) -> u16 {
        match self {
            Self::Https => 443,
            Self::Http => 80,
        }
    }

    /// The word in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }
}

impl FromStr for Entry {
    type Err = InvalidEntry;

    fn from_str(raw: &str) -> Result<Self, InvalidEntry> {
        let (scheme, rest) = match raw.split_once("://") {
            None => (Scheme::Https, raw),
            Some((word, rest)) if word.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
            Some((word, rest)) if word.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
            Some(_) => return Err(InvalidEntry::Scheme),
        };
        if rest.contains(['/', '?', '#', '@', '\\']) {
            return Err(InvalidEntry::Path);
        }
        let (below, rest) = match rest.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        if rest.contains('*') {
            return Err(InvalidEntry::Wildcard);
        }
        let Authority { host, port } = rest.parse()?;
        let pattern = match (below, host) {
            (false, host) => Pattern::Exactly(host),
            (true, Host::Address(_)) => return Err(InvalidEntry::Wildcard),
            (true, Host::Name(name)) if psl::suffix_str(name.as_str()) == Some(name.as_str()) => {
                return Err(InvalidEntry::Registry);
            }
            (true, Host::Name(name)) => Pattern::Below(name),
        };
        Ok(Self { pattern, scheme, port: port.unwrap_or(scheme.port()) })
    }
}

impl fmt::Display for Entry {
    /// The shortest text that reads back as this entry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scheme != Scheme::Https {
            write!(f, "{}://", self.scheme.as_str())?;
        }
        match &self.pattern {
            Pattern::Exactly(host) => host.fmt(f)?,
            Pattern::Below(parent) => write!(f, "*.{parent}")?,
        }
        if self.port != self.scheme.port() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

as_text!(Entry);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers(entry: &str, scheme: Scheme, authority: &str) -> bool {
        let entry: Entry = entry.parse().unwrap();
        let Authority { host, port } = authority.parse().unwrap();
        entry.covers(&host, port.unwrap_or(scheme.port()), scheme)
    }

    /// W-02: compared label by label, in one form.
    #[test]
    fn an_entry_covers_what_it_names() {
        use Scheme::{Http, Https};
        for (entry, scheme, authority, expected) in [
            ("good.test", Https, "good.test", true),
            ("good.test", Https, "GOOD.TEST.", true),
            ("good.test", Https, "a.good.test", false),
            ("good.test", Https, "evil-good.test", false),
            ("good.test", Https, "good.test.evil.test", false),
            ("good.test", Https, "good.testx", false),
            ("good.test", Https, "good.test:8443", false),
            ("good.test", Http, "good.test", false),
            ("good.test", Http, "good.test:443", false),
            ("*.good.test", Https, "a.b.good.test", true),
            ("*.good.test", Https, "good.test", false),
            ("*.good.test", Https, "xgood.test", false),
            ("good.test:8443", Https, "good.test:8443", true),
            ("good.test:8443", Https, "good.test", false),
            ("http://good.test", Http, "good.test", true),
            ("http://good.test", Https, "good.test:80", false),
            ("http://good.test", Https, "good.test", false),
            ("bücher.test", Https, "xn--bcher-kva.test", true),
            ("8.8.8.8", Https, "0x08080808", true),
            ("[2001:4860:4860::8888]", Https, "[2001:4860:4860:0::8888]", true),
        ] {
            assert_eq!(covers(entry, scheme, authority), expected, "{entry} {authority}");
        }
    }

    #[test]
    fn an_entry_says_what_is_wrong_with_it() {
        use InvalidEntry::{Path, Registry, Scheme, Wildcard};
        for (raw, expected) in [
            ("ftp://good.test", Scheme),
            ("https://good.test/", Path),
            ("good.test/x", Path),
            ("a@good.test", Path),
            ("*", Wildcard),
            ("*.*.test", Wildcard),
            ("a.*.test", Wildcard),
            ("good*.test", Wildcard),
            ("*.1.2.3.4", Wildcard),
            ("*.com", Registry),
            ("*.test", Registry),
            ("*.co.uk", Registry),
            ("*.github.io", Registry),
        ] {
            assert_eq!(raw.parse::<Entry>(), Err(expected), "{raw}");
        }
        for raw in ["", "https://", "good.test:", "*.", "http://:80", "a b"] {
            let refused = raw.parse::<Entry>();
            assert!(matches!(refused, Err(InvalidEntry::Authority(_))), "{raw:?} {refused:?}");
        }
    }

    proptest! {
        #[test]
        fn an_entry_reads_back_as_itself(
            raw in "(https?://)?(\\*\\.)?[a-z]{1,9}\\.[a-z]{2,9}\\.test(:[1-9][0-9]{0,3})?",
        ) {
            let entry: Entry = raw.parse().unwrap();
            prop_assert_eq!(entry.to_string().parse(), Ok(entry));
        }

        #[test]
        fn no_text_panics(raw in "\\PC{0,40}") {
            if let Ok(entry) = raw.parse::<Entry>() {
                prop_assert_eq!(entry.to_string().parse(), Ok(entry));
            }
        }
    }
}
