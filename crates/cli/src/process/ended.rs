//! How a process ended, as an exit code.

use guest_protocol::process::EndEvent;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself.
    Exited(u8),
    /// By a signal.
    Signaled(i32),
    /// It may not have: we stopped following it, because we were sent this
    /// signal twice or because nobody reads its output.
    Left(i32),
    /// By the time limit.
    TimedOut,
}

/// What the guest calls the signals, as E2B's daemon does; others go by number.
const NAMES: [(&str, i32); 14] = [
    ("hangup", 1),
    ("interrupt", 2),
    ("quit", 3),
    ("illegal instruction", 4),
    ("trace/breakpoint trap", 5),
    ("aborted", 6),
    ("bus error", 7),
    ("floating point exception", 8),
    ("killed", 9),
    ("user defined signal 1", 10),
    ("segmentation fault", 11),
    ("user defined signal 2", 12),
    ("broken pipe", 13),
    ("terminated", 15),
];

impl Ended {
    /// The exit code a shell would show.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(number) | Self::Left(number) => {
                u8::try_from(128 + number).unwrap_or(u8::MAX)
            }
            Self::TimedOut => 124,
        }
    }
}

impl From<&EndEvent> for Ended {
    fn from(end: &EndEvent) -> Self {
        if end.exited {
            // The kernel keeps eight bits.
            return Self::Exited((end.exit_code & 0xff).try_into().unwrap_or(u8::MAX));
        }
        let name = end.status.trim_start_matches("signal: ").trim_end_matches(" (core dumped)");
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        let number = || name.trim_start_matches("signal ").parse().ok();
        // A death that is told in no way we know was still not a success.
        Self::Signaled(
            known.or_else(number).filter(|number| (1..=64).contains(number)).unwrap_or(9),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(exited: bool, exit_code: i32, status: &str, code: u8) {
        let end = EndEvent { exit_code, exited, status: status.into(), error: None };
        assert_eq!(Ended::from(&end).code(), code, "{end:?}");
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        check(true, 0, "exit status 0", 0);
        check(true, 3, "exit status 3", 3);
        check(true, 255, "exit status 255", 255);
        check(false, -1, "signal: killed", 137);
        check(false, -1, "signal: segmentation fault (core dumped)", 139);
        check(false, -1, "signal: signal 34", 162);
        check(false, -1, "", 137);
        assert_eq!(Ended::TimedOut.code(), 124);
    }
}
