//! What a sandbox can be started from again: its kind, and the key that opens it.
//!
//! A snapshot holds everything that the sandbox held, secrets in memory included
//! (S36), so each one is encrypted under a key of its own. Without the key it is
//! noise: forgetting the key is how a snapshot is made unrecoverable (S49, U40).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use zeroize::ZeroizeOnDrop;

/// What a snapshot keeps (U12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotKind {
    /// Files only. A sandbox started from it boots anew.
    Files,
    /// Memory and devices, files in memory included. A sandbox started from it
    /// goes on where it stopped.
    Full,
}

/// A word that is not a kind of snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a kind of snapshot: expected \"files\" or \"full\"")]
pub struct InvalidSnapshotKind;

impl SnapshotKind {
    /// The word used on every surface and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Full => "full",
        }
    }
}

impl FromStr for SnapshotKind {
    type Err = InvalidSnapshotKind;

    fn from_str(raw: &str) -> Result<Self, InvalidSnapshotKind> {
        match raw {
            "files" => Ok(Self::Files),
            "full" => Ok(Self::Full),
            _ => Err(InvalidSnapshotKind),
        }
    }
}

/// A name that somebody gave a snapshot: 1 to 64 small letters, digits, `.`,
/// `_`, `-`, beginning with a letter or a digit, and never the form of an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotName(String);

/// A text that cannot be a snapshot's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a snapshot's name has 1 to 64 small letters, digits, '.', '_', '-', begins with a letter or \
     a digit, and not with snp_"
)]
pub struct InvalidSnapshotName;

impl SnapshotName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SnapshotName {
    type Err = InvalidSnapshotName;

    fn from_str(raw: &str) -> Result<Self, InvalidSnapshotName> {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=64).contains(&raw.len())
            && raw.bytes().next().is_some_and(letter)
            && raw.bytes().all(|byte| letter(byte) || b"._-".contains(&byte))
            && !raw.starts_with("snp_");
        if fits { Ok(Self(raw.to_owned())) } else { Err(InvalidSnapshotName) }
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What happens to a sandbox at its time limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// It ends.
    #[default]
    Terminate,
    /// It is paused.
    Pause,
}

/// A word that says nothing about a time limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected \"terminate\" or \"pause\"")]
pub struct InvalidOnTimeout;

impl OnTimeout {
    /// The word used on every surface and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::Pause => "pause",
        }
    }
}

impl FromStr for OnTimeout {
    type Err = InvalidOnTimeout;

    fn from_str(raw: &str) -> Result<Self, InvalidOnTimeout> {
        match raw {
            "terminate" => Ok(Self::Terminate),
            "pause" => Ok(Self::Pause),
            _ => Err(InvalidOnTimeout),
        }
    }
}

/// The key of one snapshot: 256 bits. Wiped when dropped, never printed.
#[derive(Clone, ZeroizeOnDrop)]
pub struct SnapshotKey([u8; 32]);

impl SnapshotKey {
    /// A key from 32 random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the cipher and for sealing.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SnapshotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SnapshotKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_as_itself() {
        for kind in [SnapshotKind::Files, SnapshotKind::Full] {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!("whole".parse::<SnapshotKind>(), Err(InvalidSnapshotKind));
    }

    #[test]
    fn a_name_is_small_plain_and_no_id() {
        for name in ["a", "0", "python-3.12_warm", &"x".repeat(64)] {
            assert_eq!(name.parse::<SnapshotName>().unwrap().as_str(), name);
        }
        for name in ["", ".a", "-a", "A", "a b", "a/b", "snp_x", "é", "a\n", &"x".repeat(65)] {
            assert!(name.parse::<SnapshotName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn every_word_about_a_time_limit_reads_back() {
        for word in [OnTimeout::Terminate, OnTimeout::Pause] {
            assert_eq!(word.as_str().parse(), Ok(word));
        }
        assert!("stop".parse::<OnTimeout>().is_err());
    }

    /// S49: a key cannot reach a log by accident.
    #[test]
    fn a_key_does_not_print() {
        assert_eq!(format!("{:?}", SnapshotKey::from_random([0x5a; 32])), "SnapshotKey(..)");
    }
}
