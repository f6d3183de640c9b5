//! The egress mode of a sandbox: what it may reach.

use serde::{Deserialize, Serialize};

/// What a sandbox can reach, from nothing to any public address (U3).
///
/// The order is the comparison: anyone may narrow a mode, only policy widens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EgressMode {
    /// Nothing at all, named upstreams included (U21). The default (S9).
    #[default]
    Off,
    /// Named upstreams only.
    Brokered,
    /// And HTTPS to an allowlist.
    Restricted,
    /// And any public destination, judged request by request.
    Mediated,
    /// Any public address over TCP and UDP, without credentials.
    Open,
}

impl EgressMode {
    /// The word used on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Brokered => "brokered",
            Self::Restricted => "restricted",
            Self::Mediated => "mediated",
            Self::Open => "open",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EgressMode::*;

    /// S9, U3
    #[test]
    fn off_is_the_default_and_the_least() {
        assert_eq!(super::EgressMode::default(), Off);
        assert!(
            Off < Brokered && Brokered < Restricted && Restricted < Mediated && Mediated < Open
        );
    }
}
