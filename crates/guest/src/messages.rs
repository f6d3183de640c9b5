//! What init says to the API, to the relay and to a worker, and they to it.
//!
//! Init trusts the API with little: it may start processes under accounts of
//! the host's list, signal and release processes it was told about, and ask
//! for a file worker of such an account. Everything is checked again in init.
//! The relay may have streams to the gateway opened, as many as a mode allows.

use std::net::SocketAddr;

use guest_protocol::{connect::Code, control::Mode, egress::Opening, process::ProcessConfig};
use serde::{Deserialize, Serialize};

/// Init to the API. Descriptors travel beside the message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToApi {
    /// One descriptor: a connection of the host that speaks HTTP.
    Connection,
    /// What the host said about this sandbox.
    Identity { environment: Vec<(String, String)>, accounts: Vec<u32> },
    /// Answers [`ToInit::Start`]; the process's streams are the descriptors.
    Started { request: u64, process: Process },
    /// Answers [`ToInit::Start`].
    NotStarted { request: u64, code: Code, message: String },
    /// A process that was there before this API; its streams likewise.
    Existing(Process),
    /// A process has ended.
    Ended { id: u64, end: End },
    /// Answers [`ToInit::Worker`]; one descriptor, a channel to the worker.
    Worker { request: u64 },
    /// Answers [`ToInit::Worker`].
    NoWorker { request: u64, message: String },
}

/// The API to init.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// Start a process.
    Start { request: u64, start: Start },
    /// Send a signal to a process and all it started; 9 reaches everything.
    Signal { id: u64, signal: i32 },
    /// Close init's own copy of a process's standard input.
    CloseStdin { id: u64 },
    /// Forget an ended process and close its streams.
    Release { id: u64 },
    /// Start a file worker.
    Worker { request: u64, uid: u32 },
}

/// Init to the relay.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum ToRelay {
    /// What to serve from now on. Where the mode captures, its sockets are the
    /// descriptors, by the slot of the program in the kernel.
    Network { number: u64, mode: Mode },
}

/// The relay to init.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromRelay {
    /// What was told under this number is done.
    Done { number: u64 },
    /// Open a stream for the client, whose socket is the one descriptor.
    Carry(Opening),
    /// A datagram from a program, to the address in the opening.
    Datagram { opening: Opening, program: SocketAddr, datagram: Vec<u8> },
}

/// Tells a file worker that the one descriptor beside it is a connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Serve;

/// A program to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) cmd: String,
    pub(crate) args: Vec<String>,
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) cwd: Option<String>,
}

/// How a process's streams are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wiring {
    /// Standard input as a pipe, and two pipes for the output.
    Pipes,
    /// Empty standard input, and two pipes for the output.
    NoStdin,
    /// A terminal of so many columns and rows.
    Terminal { cols: u16, rows: u16 },
}

/// A process to be started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) uid: u32,
    pub(crate) command: Command,
    pub(crate) tag: Option<String>,
    pub(crate) wiring: Wiring,
    /// Milliseconds after which all of it is killed.
    pub(crate) deadline_ms: Option<u64>,
}

/// A started process. Its descriptors are standard input (only with
/// [`Wiring::Pipes`], and only while it is open), output, error; or the terminal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) command: Command,
    pub(crate) tag: Option<String>,
    pub(crate) wiring: Wiring,
    pub(crate) end: Option<End>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// Killed because its time was up.
    Deadline,
}

impl Command {
    /// The same as far as a listing needs it: long ones are cut, so that a
    /// table of thousands cannot fill the memory.
    pub(crate) fn for_listing(&self) -> Self {
        const MOST: usize = 4 * 1024;
        let mut left = MOST;
        let mut fits = |text: &str| {
            let fits = text.len() <= left;
            left = left.saturating_sub(text.len());
            fits
        };
        Self {
            cmd: if fits(&self.cmd) { self.cmd.clone() } else { String::from("…") },
            cwd: self.cwd.clone().filter(|cwd| fits(cwd)),
            args: self.args.iter().take_while(|word| fits(word)).cloned().collect(),
            envs: self
                .envs
                .iter()
                .take_while(|(name, value)| fits(name) && fits(value))
                .cloned()
                .collect(),
        }
    }
}

impl From<ProcessConfig> for Command {
    fn from(config: ProcessConfig) -> Self {
        let envs = config.envs.into_iter().collect();
        Self { cmd: config.cmd, args: config.args, envs, cwd: config.cwd }
    }
}

impl From<Command> for ProcessConfig {
    fn from(command: Command) -> Self {
        let envs = command.envs.into_iter().collect();
        Self { cmd: command.cmd, args: command.args, envs, cwd: command.cwd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_of_a_huge_command_is_small() {
        let command = Command {
            cmd: "/bin/echo".into(),
            args: vec!["short".into(), "x".repeat(1 << 20), "lost".into()],
            envs: vec![("A".into(), "b".into())],
            cwd: None,
        };
        let listed = command.for_listing();
        assert_eq!(listed.args, ["short"]);
        assert_eq!(listed.cmd, "/bin/echo");
    }
}
