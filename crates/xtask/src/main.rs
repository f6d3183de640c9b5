//! The tasks of this repository, each a subcommand of `cargo xtask`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task reports to the terminal it was started from"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod conformance;
mod image;
mod proof;
mod requirements;
mod step;
mod tidy;
mod tree;
mod workspace;

/// Tasks of the Coldframe repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the base image that sandboxes start from
    Image(image::ImageArgs),
    /// Check what no compiler checks
    Tidy,
    /// Write down which tests prove which requirement
    Conformance(conformance::ConformanceArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Image(arguments) => image::run(arguments),
        Command::Tidy => tidy::run(),
        Command::Conformance(arguments) => conformance::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
