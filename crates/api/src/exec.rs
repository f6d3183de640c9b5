//! Running one command to its end, on the wire.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::variables::Variables;

/// A command: either `cmd` (a program and its arguments) or `command` (a line
/// for the shell).
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The program and its arguments; no shell is involved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["python3", "-c", "print(1)"]))]
    pub cmd: Option<Vec<String>>,
    /// A line for `/bin/bash -l -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The working directory; the account's home if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables beside those of the sandbox.
    #[serde(default, skip_serializing_if = "Variables::is_empty")]
    pub env: Variables,
    /// The account to run as; `user` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Standard input in base64, then end of file; empty if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Seconds until the command is killed, 1 to 3600; 60 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// The most bytes to keep of each output, at most 8 MiB; 1 MiB if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u32>,
    /// What becomes of the command when the client closes the connection before
    /// the answer: it runs on until its time limit, or it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
}

/// What becomes of a process when its client goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    /// It runs on.
    #[default]
    Continue,
    /// It is killed with everything it started.
    Kill,
}

impl OnDisconnect {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Kill => "kill",
        }
    }
}

impl FromStr for OnDisconnect {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "continue" => Ok(Self::Continue),
            "kill" => Ok(Self::Kill),
            _ => Err("must be `continue` or `kill`"),
        }
    }
}

impl fmt::Debug for ExecRequest {
    /// Leaves out arguments, input and every value: they are content (U16).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecRequest")
            .field("env", &self.env)
            .field("user", &self.user)
            .field("timeout_seconds", &self.timeout_seconds)
            .field("max_output_bytes", &self.max_output_bytes)
            .finish_non_exhaustive()
    }
}

/// What a command left behind (S88).
///
/// An output is under its plain name when it is UTF-8 and under `…_base64`
/// otherwise; one of the two is always there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Standard output that is not UTF-8, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Standard error that is not UTF-8, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// The exit code; -1 when a signal ended it.
    pub exit_code: i32,
    /// How it ended: `exit status 3` or `signal: killed`.
    pub status: String,
    /// From the request to the end of the command.
    pub duration_ms: u64,
    /// Which outputs were cut at `max_output_bytes`. The command was not
    /// disturbed by it: the rest was read and dropped.
    pub truncated: Truncated,
    /// Whether the time limit ended it.
    pub timed_out: bool,
}

/// Which outputs are incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Truncated {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U16
    #[test]
    fn neither_arguments_nor_input_print() {
        let request: ExecRequest = serde_json::from_str(
            r#"{"cmd":["curl","hunter2"],"stdin":"aHVudGVyMg==","env":{"KEY":"hunter2"}}"#,
        )
        .unwrap();
        let shown = format!("{request:?}");
        assert!(shown.contains("KEY"), "{shown}");
        assert!(!shown.contains("hunter2") && !shown.contains("aHVu"), "{shown}");
    }
}
