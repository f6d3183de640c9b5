//! Messages of the guest API's `process.Process` service.
//!
//! The wire is that of E2B's in-sandbox daemon in protobuf's JSON mapping:
//! lower camel case, bytes in base64, a `oneof` as the one field that is
//! present. Zero values may be missing, so every field has a default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes_json::Base64;

/// Path prefix of the service's methods.
pub const SERVICE: &str = "/process.Process/";

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessConfig {
    /// The program: a path, or a name to find in `PATH`.
    pub cmd: String,
    /// Its arguments, without the program's own name.
    pub args: Vec<String>,
    /// Variables beside those of the sandbox.
    pub envs: BTreeMap<String, String>,
    /// The working directory; the user's home if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Size of a terminal in cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u32,
    /// Rows.
    pub rows: u32,
}

/// A terminal for a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pty {
    /// Its size.
    pub size: TerminalSize,
}

/// `Start`: the answer is a stream of [`EventMessage`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StartRequest {
    /// What to run.
    pub process: ProcessConfig,
    /// Run it on a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name of the caller's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether standard input is a pipe; absent means yes. Otherwise it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// Which process: by number or by tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selector {
    /// Process id inside the sandbox.
    Pid(u32),
    /// The tag given at start.
    Tag(String),
}

/// `Connect`: live output and the end of a process; a stream of [`EventMessage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// Which process.
    pub process: Selector,
}

/// One message of `Start` and `Connect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMessage {
    /// What happened.
    pub event: Event,
}

/// What happened to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// Always the first.
    Start(StartEvent),
    /// Output.
    Data(Output),
    /// Always the last.
    End(EndEvent),
    /// Nothing; keeps proxies from closing a quiet stream.
    Keepalive(Empty),
}

/// A process exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartEvent {
    /// Its number inside the sandbox.
    pub pid: u32,
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Output {
    /// Standard output.
    Stdout(Base64),
    /// Standard error.
    Stderr(Base64),
    /// The terminal.
    Pty(Base64),
}

/// A process has ended and all its output was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndEvent {
    /// The exit code; -1 when a signal ended it.
    pub exit_code: i32,
    /// Whether it ended by itself.
    pub exited: bool,
    /// `exit status 3` or `signal: killed`.
    pub status: String,
    /// Present when it did not end with code 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `SendInput`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInputRequest {
    /// Which process.
    pub process: Selector,
    /// The bytes.
    pub input: Input,
}

/// Bytes for a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Input {
    /// For its standard input.
    Stdin(Base64),
    /// For its terminal.
    Pty(Base64),
}

/// A message of the client stream `StreamInput`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInputRequest {
    /// What this message is.
    pub event: StreamInputEvent,
}

/// The steps of `StreamInput`: one start, then data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInputEvent {
    /// Names the process.
    Start(ConnectRequest),
    /// Bytes for it.
    Data(InputData),
    /// Nothing.
    Keepalive(Empty),
}

/// Bytes inside a [`StreamInputEvent`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputData {
    /// The bytes.
    pub input: Input,
}

/// `CloseStdin`: the process reads end of file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseStdinRequest {
    /// Which process.
    pub process: Selector,
}

/// `SendSignal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSignalRequest {
    /// Which process.
    pub process: Selector,
    /// The signal, as [`signal_name`] writes it.
    pub signal: String,
}

/// `Update`: a new terminal size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRequest {
    /// Which process.
    pub process: Selector,
    /// The terminal's new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// The answer of `List`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListResponse {
    /// Running processes that were started through the API.
    pub processes: Vec<ProcessInfo>,
}

/// A running process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    /// What it runs.
    pub config: ProcessConfig,
    /// Its number.
    pub pid: u32,
    /// Its tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A message without fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// The signals that can be sent: their number and the name on the wire.
///
/// E2B's clients send the two first; the rest is what a terminal user sends.
pub const SIGNALS: [(i32, &str); 10] = [
    (9, "SIGNAL_SIGKILL"),
    (15, "SIGNAL_SIGTERM"),
    (1, "SIGNAL_SIGHUP"),
    (2, "SIGNAL_SIGINT"),
    (3, "SIGNAL_SIGQUIT"),
    (10, "SIGNAL_SIGUSR1"),
    (12, "SIGNAL_SIGUSR2"),
    (18, "SIGNAL_SIGCONT"),
    (19, "SIGNAL_SIGSTOP"),
    (20, "SIGNAL_SIGTSTP"),
];

/// The wire name of a signal.
pub fn signal_name(number: i32) -> Option<&'static str> {
    SIGNALS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// The number of a signal named on the wire.
pub fn signal_number(name: &str) -> Option<i32> {
    SIGNALS.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T>(value: &T, json: &str)
    where
        T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(value).unwrap(), json);
        assert_eq!(&serde_json::from_str::<T>(json).unwrap(), value);
    }

    #[test]
    fn events_look_as_the_clients_expect() {
        let event = |event| EventMessage { event };
        check(&event(Event::Start(StartEvent { pid: 7 })), r#"{"event":{"start":{"pid":7}}}"#);
        check(
            &event(Event::Data(Output::Stdout(Base64(b"hi\n".to_vec())))),
            r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
        );
        check(
            &event(Event::End(EndEvent {
                exit_code: 3,
                exited: true,
                status: "exit status 3".into(),
                error: Some("exit status 3".into()),
            })),
            r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}"#,
        );
    }

    #[test]
    fn a_minimal_start_is_understood() {
        let start: StartRequest =
            serde_json::from_str(r#"{"process":{"cmd":"/bin/true"},"unknown":1}"#).unwrap();
        assert_eq!(start.process.cmd, "/bin/true");
        assert_eq!(start.stdin, None);
    }

    #[test]
    fn a_selector_is_one_of_two() {
        check(&ConnectRequest { process: Selector::Pid(4) }, r#"{"process":{"pid":4}}"#);
        check(&ConnectRequest { process: Selector::Tag("x".into()) }, r#"{"process":{"tag":"x"}}"#);
    }
}
