//! The commands: what they are called, and which function does them.
//!
//! Each command has a file with its arguments, whose comments are its help, and
//! one function. `docs/reference/cli.md` is generated from here.

mod doctor;
mod egress;
mod gateway;
mod image;
mod mistake;
mod run;
mod sandbox;
mod serve;
mod session;
mod snapshot;
mod template;
mod token;
mod volume;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use domain::size::{InvalidResources, MAX_CPUS, MIN_MEMORY_MIB, Resources, SizeClass};
use serde_json::{Map, Value, json};

use crate::{
    config::{Config, Override},
    duration,
    error::{Codes, Failure, Kind, Outcome},
    output::{self, Format},
    process::{Ended, Input, Kept, Launch, Sink, Terminal},
    terminal, variables,
};

/// Run code that nobody trusts, each in a machine of its own
///
/// `coldframe run` needs no server. `coldframe serve` offers sandboxes to
/// programs over HTTP; `coldframe sandbox` and `coldframe token` are clients of
/// such a server.
#[derive(Debug, Parser)]
#[command(name = "coldframe", version, max_term_width = 100)]
struct Arguments {
    /// Read this configuration instead of the installation's own
    ///
    /// That is coldframe.toml in the folder above bin, if the program lies in such
    /// a folder, else /etc/coldframe/config.toml.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    /// Create, use and end sandboxes of a server
    #[command(subcommand)]
    Sandbox(sandbox::SandboxCommand),
    /// Make and end sessions in a sandbox
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// See what sandboxes reached, and what they would
    #[command(subcommand)]
    Egress(egress::EgressCommand),
    /// Keep what sandboxes are, to start from again
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// List, check, bring in and take out images
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Make, attach, check out and restore volumes of a server
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Build, list and delete templates of a server
    #[command(subcommand)]
    Template(template::TemplateCommand),
    /// Make and revoke tokens of a server
    #[command(subcommand)]
    Token(token::TokenCommand),
    Doctor(doctor::DoctorArgs),
    Serve(serve::ServeArgs),
}

pub(crate) use self::gateway::main as gateway;

/// Where things are kept.
#[derive(Debug, Args)]
pub(crate) struct Places {
    /// Folder for everything that is kept
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Folder of images
    #[arg(long, value_name = "DIR")]
    pub(crate) images: Option<PathBuf>,

    /// Folder of templates and of what else machines are made from
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
}

impl Places {
    /// As settings.
    pub(crate) fn overrides(&self) -> Vec<Override> {
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        vec![
            ("state_dir", text(&self.state_dir)),
            ("images", text(&self.images)),
            ("cache_dir", text(&self.cache_dir)),
        ]
    }
}

/// What a sandbox is given.
#[derive(Debug, Args)]
pub(crate) struct SizeArgs {
    /// Its size: small, medium or large [default: small]
    #[arg(long, conflicts_with_all = ["cpus", "memory_mb"])]
    pub(crate) size: Option<SizeClass>,

    /// Processors, instead of a size
    #[arg(long, value_name = "N", requires = "memory_mb")]
    pub(crate) cpus: Option<u8>,

    /// Memory in MiB, instead of a size
    #[arg(long, value_name = "N", requires = "cpus")]
    pub(crate) memory_mb: Option<u32>,
}

impl SizeArgs {
    /// As limits, if such a machine can be.
    pub(crate) fn chosen(&self) -> Outcome<Resources> {
        match (self.size, self.cpus, self.memory_mb) {
            (None, Some(cpus), Some(memory_mb)) => {
                Resources::explicit(cpus, memory_mb).map_err(|error| {
                    Failure::usage(match error {
                        InvalidResources::Cpus => format!("--cpus must be 1 to {MAX_CPUS}"),
                        InvalidResources::Memory => {
                            format!("--memory-mb must be at least {MIN_MEMORY_MIB}")
                        }
                    })
                })
            }
            (size, ..) => Ok(Resources::of(size.unwrap_or_default())),
        }
    }

    /// As limits, where the machine and the installation allow them.
    pub(crate) fn resources(&self, config: &Config) -> Outcome<Resources> {
        let resources = self.chosen()?;
        if resources.cpus > config.max_cpus || resources.memory_mib > config.max_memory_mb {
            let limits = (config.max_cpus, config.max_memory_mb);
            let message = format!("a sandbox may have {} cpus and {} MiB here", limits.0, limits.1);
            return Err(Failure::refused(message)
                .hint("choose a smaller size, or raise max_cpus and max_memory_mb"));
        }
        Ok(resources)
    }
}

/// How a program is run.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Set a variable; without a value, take it from here
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Kill the program after this time and exit with 124
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,

    /// The directory to begin in [default: the account's home]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,

    /// The account to run as
    #[arg(long, default_value = "user")]
    pub(crate) user: String,

    /// Pass standard input on
    #[arg(short, long)]
    pub(crate) interactive: bool,

    /// Give the program a terminal; standard input must be one
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) tty: bool,
}

impl ProgramArgs {
    /// As a launch. The variables are for the process alone.
    pub(crate) fn launch(&self, command: &[String]) -> Outcome<Launch> {
        if self.tty {
            terminal::required()?;
        }
        let environment = variables::read(&self.env, variables::own)?;
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Ok(Launch {
            command: command.to_vec(),
            environment: environment.expose().map(owned).collect(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            timeout: self.timeout,
            input: if self.interactive { Input::Ours } else { Input::Empty },
            terminal: if self.tty { Terminal::Yes } else { Terminal::No },
        })
    }
}

/// Whether results are for programs.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Json {
    /// As a format.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

/// Reads the configuration with the flags of a command on top.
pub(crate) struct Configured<'a> {
    file: Option<&'a std::path::Path>,
}

impl Configured<'_> {
    /// The configuration.
    pub(crate) fn load(&self, flags: &[Override]) -> Outcome<Config> {
        Config::load(self.file, flags)
    }
}

/// Parses the arguments, does what they say, and says how it went.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let parsed = Arguments::command()
        .try_get_matches_from(arguments)
        .and_then(|matches| Arguments::from_arg_matches(&matches));
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return mistake::report(&error, arguments),
    };
    let configured = Configured { file: parsed.config.as_deref() };
    let (codes, format) = (parsed.command.codes(), parsed.command.format());
    let code = match parsed.command {
        Command::Run(arguments) => run::run(&configured, &arguments),
        Command::Sandbox(command) => sandbox::run(&configured, command),
        Command::Session(command) => session::run(&configured, command),
        Command::Egress(command) => egress::run(&configured, command),
        Command::Snapshot(command) => snapshot::run(&configured, command),
        Command::Image(command) => image::run(&configured, command),
        Command::Volume(command) => volume::run(&configured, command),
        Command::Template(command) => template::run(&configured, command),
        Command::Token(command) => token::run(&configured, command),
        Command::Doctor(arguments) => doctor::run(&configured, &arguments),
        Command::Serve(arguments) => serve::run(&configured, &arguments),
    };
    match code {
        Ok(code) => code.into(),
        Err(failure) => {
            output::failure(&failure, format);
            failure.kind.code(codes).into()
        }
    }
}

impl Command {
    fn codes(&self) -> Codes {
        match self {
            Self::Run(_) => Codes::Program,
            Self::Sandbox(command) => command.codes(),
            Self::Session(_)
            | Self::Egress(_)
            | Self::Snapshot(_)
            | Self::Image(_)
            | Self::Volume(_)
            | Self::Template(_)
            | Self::Token(_)
            | Self::Doctor(_)
            | Self::Serve(_) => Codes::Own,
        }
    }

    fn format(&self) -> Format {
        match self {
            Self::Run(arguments) => arguments.json.format(),
            Self::Sandbox(command) => command.format(),
            Self::Session(command) => command.format(),
            Self::Egress(command) => command.format(),
            Self::Snapshot(command) => command.format(),
            Self::Image(command) => command.format(),
            Self::Volume(command) => command.format(),
            Self::Template(command) => command.format(),
            Self::Token(command) => command.format(),
            Self::Doctor(arguments) => arguments.json.format(),
            Self::Serve(_) => Format::Text,
        }
    }
}

/// Runs `future` on a runtime of its own.
///
/// Threads that wait for our standard input are left behind: the program ends.
pub(crate) fn block_on<T>(future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::from)?;
    let outcome = runtime.block_on(future);
    runtime.shutdown_background();
    outcome
}

/// Shows how a program ended and returns its exit code.
pub(crate) fn report(launch: &Launch, ended: Ended, sink: Sink, took: Duration) -> Outcome<u8> {
    if let (Ended::TimedOut, Some(limit)) = (ended, launch.timeout) {
        // The code alone could be the program's own.
        let message = format!("the program was ended after {limit:?} (--timeout)");
        output::failure(&Failure::new(Kind::TimedOut, message), Format::Text);
    }
    let Sink::Memory(collected) = sink else { return Ok(ended.code()) };
    let mut result = Map::new();
    put(&mut result, "stdout", &collected.output);
    put(&mut result, "stderr", &collected.error);
    result.insert("exit_code".to_owned(), ended.code().into());
    result.insert(
        "duration_ms".to_owned(),
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX).into(),
    );
    result.insert("timed_out".to_owned(), (ended == Ended::TimedOut).into());
    let truncated = json!({
        "stdout": collected.output.truncated,
        "stderr": collected.error.truncated,
    });
    result.insert("truncated".to_owned(), truncated);
    output::json(&result)?;
    Ok(ended.code())
}

/// As the server's `exec`: text under its name, other bytes in base64.
fn put(result: &mut Map<String, Value>, name: &str, kept: &Kept) {
    match std::str::from_utf8(&kept.bytes) {
        Ok(text) => result.insert(name.to_owned(), text.into()),
        Err(_) => result.insert(format!("{name}_base64"), STANDARD.encode(&kept.bytes).into()),
    };
}

#[cfg(test)]
mod tests;
