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

    /// S49: a key cannot reach a log by accident.
    #[test]
    fn a_key_does_not_print() {
        assert_eq!(format!("{:?}", SnapshotKey::from_random([0x5a; 32])), "SnapshotKey(..)");
    }
}
