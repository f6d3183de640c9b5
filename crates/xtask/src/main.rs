//! The tasks of this repository, each a subcommand of `cargo xtask`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a task reports to the terminal it was started from"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod binaries;
mod checks;
mod conformance;
mod demo;
mod image;
mod privilege;
mod progress;
mod proof;
mod requirements;
mod service;
mod setup;
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
    /// Set everything up, walk through a sandbox, and leave a server running
    Demo(demo::DemoArgs),
    /// Install what this machine lacks
    Setup(setup::SetupArgs),
    /// Build the programs
    Build(binaries::BuildArgs),
    /// Run every check and every test
    Test(checks::TestArgs),
    /// Run what the checks of a change run, which is `test`
    Ci(checks::TestArgs),
    /// Measure what a sandbox costs, beside other ways to run a program
    Bench(bench::BenchArgs),
    /// Check what no compiler checks
    Tidy,
    /// Write down which tests prove which requirement
    Conformance(conformance::ConformanceArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Image(arguments) => image::run(arguments).map(|()| ExitCode::SUCCESS),
        Command::Demo(arguments) => demo::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Setup(arguments) => setup::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Build(arguments) => binaries::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Test(arguments) | Command::Ci(arguments) => checks::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Tidy => tidy::run().map(|()| ExitCode::SUCCESS),
        Command::Conformance(arguments) => conformance::run(&arguments).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
