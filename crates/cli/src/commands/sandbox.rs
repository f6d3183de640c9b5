//! Sandboxes of a server.

mod copy;
mod create;
mod exec;
mod inspect;
mod kill;
mod location;
mod network;
mod pause;
mod stats;

use clap::Subcommand;

use super::{Configured, block_on};
use crate::{
    error::{Codes, Outcome},
    output::Format,
};

#[derive(Debug, Subcommand)]
pub(crate) enum SandboxCommand {
    Create(create::CreateArgs),
    List(inspect::ListArgs),
    Get(inspect::GetArgs),
    Exec(exec::ExecArgs),
    Shell(exec::ShellArgs),
    #[command(name = "cp")]
    Copy(copy::CopyArgs),
    Logs(inspect::LogsArgs),
    Network(network::NetworkArgs),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Fork(pause::ForkArgs),
    Extend(pause::ExtendArgs),
    Stats(stats::StatsArgs),
    Kill(kill::KillArgs),
}

impl SandboxCommand {
    /// Whose exit codes it uses.
    pub(crate) fn codes(&self) -> Codes {
        match self {
            Self::Exec(_) | Self::Shell(_) => Codes::Program,
            Self::Create(_)
            | Self::List(_)
            | Self::Get(_)
            | Self::Copy(_)
            | Self::Logs(_)
            | Self::Network(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Fork(_)
            | Self::Extend(_)
            | Self::Stats(_)
            | Self::Kill(_) => Codes::Own,
        }
    }

    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Create(arguments) => arguments.json.format(),
            Self::List(arguments) => arguments.json.format(),
            Self::Get(arguments) => arguments.json.format(),
            Self::Exec(arguments) => arguments.json.format(),
            Self::Shell(_) => Format::Text,
            Self::Copy(arguments) => arguments.json.format(),
            Self::Logs(arguments) => arguments.json.format(),
            Self::Network(arguments) => arguments.json.format(),
            Self::Pause(arguments) => arguments.json.format(),
            Self::Resume(arguments) => arguments.json.format(),
            Self::Fork(arguments) => arguments.json.format(),
            Self::Extend(arguments) => arguments.json.format(),
            Self::Stats(arguments) => arguments.json.format(),
            Self::Kill(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on sandboxes.
pub(crate) fn run(configured: &Configured<'_>, command: SandboxCommand) -> Outcome<u8> {
    match command {
        SandboxCommand::Create(arguments) => block_on(create::run(configured, &arguments)),
        SandboxCommand::List(arguments) => block_on(inspect::list(configured, &arguments)),
        SandboxCommand::Get(arguments) => block_on(inspect::get(configured, &arguments)),
        SandboxCommand::Exec(arguments) => block_on(exec::exec(configured, &arguments)),
        SandboxCommand::Shell(arguments) => block_on(exec::shell(configured, &arguments)),
        SandboxCommand::Copy(arguments) => block_on(copy::run(configured, &arguments)),
        SandboxCommand::Logs(arguments) => block_on(inspect::logs(configured, &arguments)),
        SandboxCommand::Network(arguments) => block_on(network::run(configured, &arguments)),
        SandboxCommand::Pause(arguments) => block_on(pause::pause(configured, &arguments)),
        SandboxCommand::Resume(arguments) => block_on(pause::resume(configured, &arguments)),
        SandboxCommand::Fork(arguments) => block_on(pause::fork(configured, &arguments)),
        SandboxCommand::Extend(arguments) => block_on(pause::extend(configured, &arguments)),
        SandboxCommand::Stats(arguments) => block_on(stats::run(configured, &arguments)),
        SandboxCommand::Kill(arguments) => block_on(kill::run(configured, &arguments)),
    }
}
