//! Sandboxes that rest, copies of sandboxes, and more time for one.

use std::time::Duration;

use api::sandboxes::{Fork, Resume, Sandbox};
use clap::Args;
use domain::id::SandboxId;

use super::create::{labels, seconds};
use crate::{
    commands::{Configured, Json},
    duration,
    error::Outcome,
    output::{self, Format},
    progress,
    remote::{Authority, ServerArgs},
    variables,
};

/// Pause a sandbox: keep it as it is, and stop its machine
///
/// Memory, files and processes are kept until it is resumed, and no time passes.
/// What is kept holds everything that the sandbox holds, secrets included.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The sandbox
    sandbox: SandboxId,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Resume a paused sandbox where it stood
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The sandbox
    sandbox: SandboxId,

    /// End it after this time, 10s to 1h [default: what was left of its time]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Copy a running sandbox, with its memory and its processes, and print the ids
///
/// Each copy gets a name, randomness and a time limit of its own. Copies hold
/// everything that the sandbox holds, secrets included.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The sandbox
    sandbox: SandboxId,

    /// How many copies, 1 to 100
    #[arg(long, default_value = "1", value_name = "N")]
    count: u32,

    /// Set a variable for processes that are started from now on; without a value,
    /// take it from here
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Attach a label, instead of those of the sandbox
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,

    /// End the copies after this time, 10s to 1h [default: as long as the sandbox]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Set the time limit of a sandbox, counted from now
///
/// It may be sooner or later than before.
#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    /// The sandbox
    sandbox: SandboxId,

    /// End it after this time, 10s to 1h
    #[arg(value_name = "DURATION", value_parser = duration::parse)]
    timeout: Duration,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Pauses.
pub(super) async fn pause(configured: &Configured<'_>, arguments: &PauseArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let waiting = progress::waiting("pausing the sandbox");
    let paused = client.pause(&arguments.sandbox).await;
    waiting.finish_and_clear();
    show(&paused?, arguments.json.format())
}

/// Resumes.
pub(super) async fn resume(configured: &Configured<'_>, arguments: &ResumeArgs) -> Outcome<u8> {
    let timeout_seconds = arguments.timeout.map(seconds).transpose()?;
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let waiting = progress::waiting("resuming the sandbox");
    let resumed = client.resume(&arguments.sandbox, &Resume { timeout_seconds }).await;
    waiting.finish_and_clear();
    show(&resumed?, arguments.json.format())
}

/// Copies.
pub(super) async fn fork(configured: &Configured<'_>, arguments: &ForkArgs) -> Outcome<u8> {
    let environment = variables::read(&arguments.env, variables::own)?;
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let metadata = labels(&arguments.metadata)?;
    let fork = Fork {
        count: Some(arguments.count),
        metadata: (!metadata.is_empty()).then_some(metadata),
        timeout_seconds: arguments.timeout.map(seconds).transpose()?,
        env: api::variables::Variables(environment.expose().map(owned).collect()),
    };
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let waiting = progress::waiting("copying the sandbox");
    let copies = client.fork(&arguments.sandbox, &fork).await;
    waiting.finish_and_clear();
    let copies = copies?;
    if arguments.json.format() == Format::Json {
        output::json(&copies)?;
    }
    let mut failed = 0;
    for copy in &copies.items {
        match &copy.ending {
            Some(ending) => {
                failed += 1;
                output::note(&format!("{} did not start: {}", copy.id, ending.detail));
            }
            None if arguments.json.format() == Format::Text => output::line(copy.id.as_str())?,
            None => {}
        }
    }
    Ok(u8::from(failed > 0))
}

/// Sets the time limit.
pub(super) async fn extend(configured: &Configured<'_>, arguments: &ExtendArgs) -> Outcome<u8> {
    let timeout = seconds(arguments.timeout)?;
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let sandbox = client.set_timeout(&arguments.sandbox, timeout).await?;
    match arguments.json.format() {
        Format::Json => output::json(&sandbox)?,
        Format::Text => {
            let expires = sandbox.expires_at.map(|time| time.to_string()).unwrap_or_default();
            output::line(&format!("{} {expires}", sandbox.id))?;
        }
    }
    Ok(0)
}

fn show(sandbox: &Sandbox, format: Format) -> Outcome<u8> {
    match format {
        Format::Json => output::json(sandbox)?,
        Format::Text => output::line(&format!("{} {}", sandbox.id, sandbox.state))?,
    }
    Ok(0)
}
