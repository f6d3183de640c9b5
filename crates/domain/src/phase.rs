//! Where a sandbox is in its life, as everybody sees it.
//!
//! The rules of moving between phases are in `sandbox::lifecycle`; this is only
//! the word that the store keeps and every surface shows (U1).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The public state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Accepted and recorded. The machine is being made; the guest has not answered.
    Provisioning,
    /// The guest answered. Processes and files are available.
    Running,
    /// Only files are kept; nothing executes.
    Sleeping,
    /// Memory is kept; nothing executes.
    Paused,
    /// Ended on request or by its time limit. Final.
    Terminated,
    /// The machine was lost. Final, with a reason.
    Failed,
}

impl Phase {
    /// Every phase, for tests and for parsing.
    pub const ALL: [Self; 6] = [
        Self::Provisioning,
        Self::Running,
        Self::Sleeping,
        Self::Paused,
        Self::Terminated,
        Self::Failed,
    ];

    /// Whether nothing can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Terminated | Self::Failed)
    }

    /// The word used on every surface and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Paused => "paused",
            Self::Terminated => "terminated",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no phase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a sandbox state")]
pub struct UnknownPhase(pub String);

impl FromStr for Phase {
    type Err = UnknownPhase;

    fn from_str(raw: &str) -> Result<Self, UnknownPhase> {
        Self::ALL
            .into_iter()
            .find(|phase| phase.as_str() == raw)
            .ok_or_else(|| UnknownPhase(raw.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U1
    #[test]
    fn every_phase_reads_back_as_itself() {
        for phase in Phase::ALL {
            assert_eq!(phase.as_str().parse(), Ok(phase));
        }
        assert!("Running".parse::<Phase>().is_err());
    }
}
