//! Why a sandbox came to its end.

use std::{fmt, str::FromStr};

use crate::phase::Phase;

/// The stable code of an ending. The text beside it is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Someone asked for it.
    Requested,
    /// Its time limit passed.
    TimeLimit,
    /// It never came up.
    StartFailed,
    /// Its machine ended by itself: a crash, a panic, a reboot from inside.
    MachineExited,
    /// The machine lives, the guest does not answer any more.
    GuestLost,
    /// It was paused for longer than its snapshot is kept.
    Expired,
}

impl Cause {
    /// Every cause, for tests and for parsing.
    pub const ALL: [Self; 6] = [
        Self::Requested,
        Self::TimeLimit,
        Self::StartFailed,
        Self::MachineExited,
        Self::GuestLost,
        Self::Expired,
    ];

    /// The code used on every surface and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::TimeLimit => "time_limit",
            Self::StartFailed => "start_failed",
            Self::MachineExited => "machine_exited",
            Self::GuestLost => "guest_lost",
            Self::Expired => "expired",
        }
    }

    /// The final phase it leads to.
    pub fn phase(self) -> Phase {
        match self {
            Self::Requested | Self::TimeLimit | Self::Expired => Phase::Terminated,
            Self::StartFailed | Self::MachineExited | Self::GuestLost => Phase::Failed,
        }
    }
}

/// A word that names no cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cause")]
pub struct UnknownCause(pub String);

impl FromStr for Cause {
    type Err = UnknownCause;

    fn from_str(raw: &str) -> Result<Self, UnknownCause> {
        Self::ALL
            .into_iter()
            .find(|cause| cause.as_str() == raw)
            .ok_or_else(|| UnknownCause(raw.to_owned()))
    }
}

/// How a sandbox ended: a code for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The stable code.
    pub cause: Cause,
    /// What happened. Never holds a host path, a secret or guest output beyond
    /// the last line of its console.
    pub detail: String,
}

impl Ending {
    /// Makes an ending.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_reads_back_and_is_final() {
        for cause in Cause::ALL {
            assert_eq!(cause.as_str().parse(), Ok(cause));
            assert!(cause.phase().is_final());
        }
    }
}
