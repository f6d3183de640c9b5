//! The egress mode of a sandbox: what it may reach.

use std::str::FromStr;

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

/// A word that is no mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use off, brokered, restricted, mediated or open")]
pub struct UnknownMode;

impl FromStr for EgressMode {
    type Err = UnknownMode;

    fn from_str(raw: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == raw).ok_or(UnknownMode)
    }
}

impl EgressMode {
    /// Every mode, from the least to the most.
    pub const ALL: [Self; 5] =
        [Self::Off, Self::Brokered, Self::Restricted, Self::Mediated, Self::Open];

    /// The mode of what is made from a sandbox in this one: a fork, or a start
    /// from its snapshot. `open` has to be asked for each time (S24, U4).
    pub fn inherited(self) -> Self {
        match self {
            Self::Open => Self::Off,
            other => other,
        }
    }

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

    /// S24, U4
    #[test]
    fn open_is_not_inherited() {
        for mode in super::EgressMode::ALL {
            assert_eq!(mode.inherited() == mode, mode != Open);
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        assert_eq!(Open.inherited(), Off);
    }

    /// S9, U3
    #[test]
    fn off_is_the_default_and_the_least() {
        assert_eq!(super::EgressMode::default(), Off);
        assert!(
            Off < Brokered && Brokered < Restricted && Restricted < Mediated && Mediated < Open
        );
    }
}
