//! What goes wrong, as an exit code, a sentence and what to do about it.
//!
//! The kind alone picks the exit code. A command that runs somebody's program
//! (`run`, `sandbox exec`, `sandbox shell`) passes that program's code on, so
//! our own codes there live in the band 121 to 127, which programs leave alone:
//! `timeout`, shells and container tools use it for the same purpose. Other
//! commands use small numbers. A test holds the table of `docs/guide/cli.md`
//! against this file.

use domain::ending::{Cause, Ending};
use guest_protocol::{client::ClientError as GuestError, connect::Code};
use sandbox::{backend::BackendError, host::HostError};

/// What a caller of the program can act on differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// We will not: a policy, a limit, an image that does not verify.
    Refused,
    /// The command line or the configuration makes no sense.
    Usage,
    /// A server or a sandbox does not answer, or went away.
    Unreachable,
    /// The time limit ended the program.
    TimedOut,
    /// The program exists and cannot be executed.
    NotExecutable,
    /// There is no such program.
    NotFound,
    /// A defect of ours, or a host that lets us down.
    Internal,
    /// We were sent this signal.
    Stopped(i32),
}

/// Whose exit codes a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// The command's own: 0 or a small number.
    Own,
    /// Those of a program that the command runs.
    Program,
}

impl Kind {
    /// The exit code.
    pub(crate) fn code(self, codes: Codes) -> u8 {
        match (self, codes) {
            (Self::Stopped(signal), _) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            (Self::TimedOut, _) => 124,
            (Self::NotExecutable, _) => 126,
            (Self::NotFound, _) => 127,
            (Self::Refused, Codes::Own) => 1,
            (Self::Usage, Codes::Own) => 2,
            (Self::Unreachable, Codes::Own) => 3,
            (Self::Internal, Codes::Own) => 70,
            (Self::Internal, Codes::Program) => 121,
            (Self::Usage, Codes::Program) => 122,
            (Self::Unreachable, Codes::Program) => 123,
            (Self::Refused, Codes::Program) => 125,
        }
    }

    /// The word in JSON output.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Usage => "usage",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::NotExecutable => "not_executable",
            Self::NotFound => "not_found",
            Self::Internal => "internal",
            Self::Stopped(_) => "stopped",
        }
    }
}

/// A command that did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Picks the exit code.
    pub(crate) kind: Kind,
    /// What happened, with its causes, in one line.
    pub(crate) message: String,
    /// What to do about it, one step each.
    pub(crate) hints: Vec<String>,
}

/// What every command returns.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure without hints.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new() }
    }

    /// A refusal.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Kind::Refused, message)
    }

    /// Something wrong with the command line or the configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// A failure that tells `error` with all its causes.
    pub(crate) fn because(kind: Kind, message: &str, error: &dyn std::error::Error) -> Self {
        Self::new(kind, format!("{message}: {}", chain(error)))
    }

    /// Adds what to do.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// An error and its causes in one line, each said once.
///
/// They may quote what a file or a server holds, so nothing in it is obeyed.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = next.source();
    }
    printable(&text)
}

impl From<api::client::ClientError> for Failure {
    fn from(error: api::client::ClientError) -> Self {
        use api::client::ClientError as E;
        match &error {
            E::Refused(problem) => {
                let kind = match problem.status {
                    500 => Kind::Internal,
                    503 if problem.code == "host_full" => Kind::Refused,
                    502..=504 => Kind::Unreachable,
                    400 => Kind::Usage,
                    _ => Kind::Refused,
                };
                let failure = Self::new(kind, printable(&error.to_string()));
                match problem.code.as_str() {
                    "sandbox_not_running" => failure
                        .hint("create another: `coldframe sandbox create`")
                        .hint("`coldframe sandbox get` tells how this one ended"),
                    "sandbox_paused" => failure.hint("`coldframe sandbox resume` brings it back"),
                    "not_found" if problem.detail.contains("sandbox") => {
                        failure.hint("`coldframe sandbox list` shows those there are")
                    }
                    _ => failure,
                }
            }
            E::Unauthorized(_) => Self::refused(error.to_string())
                .hint("set COLDFRAME_TOKEN or --token-file; `coldframe token create` makes one"),
            E::Unreachable { .. } => Self::new(Kind::Unreachable, chain(&error)).hint(
                "start one with `coldframe serve`, or name another with COLDFRAME_URL or --url",
            ),
            E::Protocol(_) => Self::new(Kind::Unreachable, chain(&error))
                .hint("check that COLDFRAME_URL is the address of a Coldframe server"),
        }
    }
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Refused(refusal) => {
                let kind = match refusal.code {
                    Code::DeadlineExceeded => Kind::TimedOut,
                    Code::Unavailable | Code::Aborted => Kind::Unreachable,
                    Code::Internal | Code::Unknown | Code::DataLoss => Kind::Internal,
                    _ => Kind::Refused,
                };
                Self::new(kind, printable(&refusal.message))
            }
            // What lies behind the transport knows better what happened.
            GuestError::Unreachable(source) => {
                match source.downcast::<api::client::ClientError>() {
                    Ok(known) => Self::from(*known),
                    Err(source) => match source.downcast::<HostError>() {
                        Ok(known) => Self::from(*known),
                        Err(source) => Self::because(
                            Kind::Unreachable,
                            "the sandbox did not answer",
                            source.as_ref(),
                        ),
                    },
                }
            }
            GuestError::Unreadable(_) => {
                Self::new(Kind::Unreachable, printable(&error.to_string()))
            }
        }
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Ended(ending) => Self::from(ending),
            HostError::Backend(error) => Self::from(error),
            HostError::NotFound
            | HostError::NotRunning
            | HostError::Paused
            | HostError::Busy
            | HostError::NotRecorded(_)
            | HostError::NotResumed(_)
            | HostError::Unreachable(_) => Self::new(Kind::Unreachable, chain(&error)),
        }
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let kind = match error {
            BackendError::Refused(_)
            | BackendError::Unsupported(_)
            | BackendError::Incompatible(_) => Kind::Refused,
            BackendError::NotFound | BackendError::NoSnapshot => Kind::Unreachable,
            BackendError::Failed { .. } => Kind::Internal,
        };
        Self::new(kind, chain(&error)).hint("`coldframe doctor` checks what a sandbox needs")
    }
}

impl From<Ending> for Failure {
    fn from(ending: Ending) -> Self {
        let detail = printable(&ending.detail);
        match ending.cause {
            Cause::TimeLimit => Self::new(Kind::TimedOut, detail),
            Cause::StartFailed => Self::refused(format!("the sandbox did not start: {detail}"))
                .hint("`coldframe doctor` checks what a sandbox needs"),
            Cause::Requested | Cause::MachineExited | Cause::GuestLost | Cause::Expired => {
                Self::new(Kind::Unreachable, format!("the sandbox has ended: {detail}"))
            }
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Kind::Internal, chain(&error))
    }
}

/// Text from inside a sandbox without anything that a terminal obeys.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::{Codes::*, Kind::*, *};

    const KINDS: [Kind; 7] =
        [Refused, Usage, Unreachable, TimedOut, NotExecutable, NotFound, Internal];

    #[test]
    fn every_kind_has_a_code_of_its_own() {
        for codes in [Own, Program] {
            let mut all: Vec<_> = KINDS.iter().map(|kind| kind.code(codes)).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), KINDS.len());
        }
    }

    #[test]
    fn where_a_program_runs_our_codes_stay_in_the_band() {
        for kind in KINDS {
            assert!((121..=127).contains(&kind.code(Program)), "{kind:?}");
        }
    }

    #[test]
    fn the_documented_table_is_this_one() {
        let page = include_str!("../../../docs/guide/cli.md");
        for kind in KINDS {
            let row =
                format!("| `{}` | {} | {} |", kind.word(), kind.code(Own), kind.code(Program));
            assert!(page.contains(&row), "docs/guide/cli.md misses the row {row}");
        }
    }

    #[test]
    fn a_cause_that_repeats_its_parent_is_said_once() {
        let inner = std::io::Error::other("no");
        let outer = HostError::Unreachable(inner);
        assert_eq!(chain(&outer), "the sandbox does not answer: no");
    }

    #[test]
    fn text_from_inside_moves_no_cursor() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a [2Jb c");
    }
}
