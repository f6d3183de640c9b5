//! The tasks of this repository, each a subcommand of `cargo xtask`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task reports to the terminal it was started from"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod image;
mod step;

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
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Image(arguments) => image::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
