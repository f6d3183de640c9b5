//! Why something is refused: a stable code for programs, a sentence for people
//! (U18).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stable codes. A code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The client in the sandbox belongs to no session.
    UnidentifiedSandbox,
    /// An internal or special address, written or resolved to.
    DestinationBlocked,
    /// The sandbox's mode has no such way out.
    ModeDenied,
    /// The mode has it, and the rules do not name this destination.
    PolicyDenied,
    /// There is no upstream of that name.
    NotConnected,
    /// The destination is not one that has a single reading.
    InvalidDestination,
    /// The request is not one that has a single reading.
    InvalidRequest,
    /// The path has more than one reading.
    AmbiguousPath,
    /// The name in the connection is another than the one that was permitted.
    SniMismatch,
    /// The name has no address, or nobody could say.
    Unresolvable,
    /// The destination did not answer, or not as who it should be.
    Unreachable,
    /// Too much at once.
    TooMany,
    /// It is our fault.
    InternalError,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 13] = [
        Self::UnidentifiedSandbox,
        Self::DestinationBlocked,
        Self::ModeDenied,
        Self::PolicyDenied,
        Self::NotConnected,
        Self::InvalidDestination,
        Self::InvalidRequest,
        Self::AmbiguousPath,
        Self::SniMismatch,
        Self::Unresolvable,
        Self::Unreachable,
        Self::TooMany,
        Self::InternalError,
    ];

    /// The word on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnidentifiedSandbox => "unidentified_sandbox",
            Self::DestinationBlocked => "destination_blocked",
            Self::ModeDenied => "mode_denied",
            Self::PolicyDenied => "policy_denied",
            Self::NotConnected => "not_connected",
            Self::InvalidDestination => "invalid_destination",
            Self::InvalidRequest => "invalid_request",
            Self::AmbiguousPath => "ambiguous_path",
            Self::SniMismatch => "sni_mismatch",
            Self::Unresolvable => "unresolvable",
            Self::Unreachable => "unreachable",
            Self::TooMany => "too_many",
            Self::InternalError => "internal_error",
        }
    }

    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidDestination | Self::InvalidRequest | Self::AmbiguousPath => 400,
            Self::UnidentifiedSandbox => 401,
            Self::DestinationBlocked | Self::ModeDenied | Self::PolicyDenied => 403,
            Self::NotConnected => 404,
            Self::SniMismatch => 421,
            Self::TooMany => 429,
            Self::InternalError => 500,
            Self::Unresolvable | Self::Unreachable => 502,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal. Its sentence repeats nothing that the sandbox sent, but the
/// canonical form of the destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// For programs.
    pub code: Code,
    /// For people: what was refused, and what could be done.
    pub detail: String,
    /// The rule that decided, as the journal names it.
    pub rule: String,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(code: Code, rule: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { code, rule: rule.into(), detail: detail.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U18: the word is the same in the code and on the wire.
    #[test]
    fn every_code_has_one_word() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
