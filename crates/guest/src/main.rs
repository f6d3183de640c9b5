//! `guestd`, the daemon inside a sandbox. One static binary, one role per process.
//!
//! ```text
//!  guestd init                    PID 1 of the machine, root, speaks the link
//!  guestd init --hosted SOCKET    the same without the machine: the link is a socket
//!  guestd connect SOCKET          joins stdin and stdout to that socket
//!  guestd api | relay | files UID started by init, never by hand
//! ```
//!
//! Init holds what must survive (the link, the processes, their pipes) and
//! parses as little as possible; the others parse HTTP and hold no rights. A
//! panic ends the process: init starts the others again, and a panic of PID 1
//! itself restarts the machine, which the host sees as its end.
//!
//! Deliberately absent: name resolution and the account database of the C
//! library. Both load code from the image, which belongs to the workload.

mod account;
mod api;
mod channel;
mod connect;
mod console;
mod files;
mod http;
mod init;
mod messages;
mod port;
mod privilege;
mod relay;
mod runtime;
mod splice;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// What this process is.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    /// Root, supervisor, owner of the link.
    Init(init::Place),
    /// The guest API.
    Api,
    /// The relay on loopback ports.
    Relay,
    /// File work with the rights of one account.
    Files(u32),
    /// A bridge from stdin and stdout to the socket of a hosted init.
    Connect(PathBuf),
    /// Prints the version.
    Version,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match role(&arguments, std::process::id()) {
        Some(Role::Init(place)) => init::run(place),
        Some(Role::Api) => api::run(),
        Some(Role::Relay) => relay::run(),
        Some(Role::Files(uid)) => files::run(uid),
        Some(Role::Connect(socket)) => connect::run(&socket),
        Some(Role::Version) => {
            console::print(env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        None => {
            console::say("usage: guestd init [--hosted SOCKET] | connect SOCKET | version");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn role(arguments: &[OsString], pid: u32) -> Option<Role> {
    let words: Vec<Option<&str>> = arguments.iter().map(|word| word.to_str()).collect();
    match words.as_slice() {
        [Some("init"), Some("--hosted"), Some(socket)] => {
            Some(Role::Init(init::Place::Hosted(PathBuf::from(socket))))
        }
        [Some("connect"), Some(socket)] => Some(Role::Connect(PathBuf::from(socket))),
        [Some("api")] => Some(Role::Api),
        [Some("relay")] => Some(Role::Relay),
        [Some("files"), Some(uid)] => uid.parse().ok().map(Role::Files),
        [Some("version" | "--version")] => Some(Role::Version),
        // The kernel passes words of its command line that it does not know.
        _ if pid == 1 => Some(Role::Init(init::Place::Machine)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &[&str], pid: u32, expected: Option<Role>) {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        assert_eq!(role(&arguments, pid), expected, "{arguments:?}");
    }

    #[test]
    fn pid_1_is_the_machine_whatever_the_kernel_adds() {
        check(&[], 1, Some(Role::Init(init::Place::Machine)));
        check(&["splash", "init"], 1, Some(Role::Init(init::Place::Machine)));
    }

    #[test]
    fn a_hosted_init_may_be_pid_1_of_a_container() {
        let hosted = || Some(Role::Init(init::Place::Hosted("/run/s".into())));
        check(&["init", "--hosted", "/run/s"], 1, hosted());
        check(&["init", "--hosted", "/run/s"], 77, hosted());
    }

    #[test]
    fn the_machine_is_never_set_up_by_accident() {
        check(&["init"], 77, None);
        check(&[], 77, None);
        check(&["files", "x"], 77, None);
    }
}
