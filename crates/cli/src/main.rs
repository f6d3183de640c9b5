//! `coldframe`: one program with a command for each thing a person does.
//!
//! Here the parts are put together and nowhere else: [`local`] composes a
//! sandbox in this process, `commands::serve` a server, and everything else
//! is a client. What a command prints goes through [`output`]; what it exits
//! with is decided in [`error`].

mod commands;
mod config;
mod duration;
mod error;
mod gateway;
#[cfg(test)]
mod golden;
mod guest_program;
mod local;
mod log;
mod output;
mod process;
mod progress;
mod remote;
mod state;
mod terminal;
mod variables;

use std::process::ExitCode;

/// The command under which this program is its own gateway.
const GATEWAY: &str = "gateway";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // Three things this program does for itself. The jailer changes what belongs
    // to a single thread, so it comes before everything that may start another.
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("jail") => backends::qemu::jail::main(),
        Some(GATEWAY) => commands::gateway(&arguments[1..]),
        Some(local::KEEPER) => local::keep(&arguments[2..]),
        _ => commands::run(&arguments),
    }
}
