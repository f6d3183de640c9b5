//! Creating a sandbox.

use std::{collections::BTreeMap, time::Duration};

use api::{sandboxes::CreateSandbox, variables::Variables, volumes::Mount};
use clap::{Args, builder::PossibleValuesParser};
use control::sandboxes::request::Timeout;
use domain::mode::EgressMode;

use crate::{
    commands::{Configured, Json, SizeArgs},
    duration,
    error::{Failure, Outcome},
    output::{self, Format},
    progress,
    remote::{Authority, ServerArgs},
    variables,
};

/// Create a sandbox and print its id
///
/// It runs when this returns, and ends by itself after --timeout.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What it starts from
    #[arg(long, default_value = "base", value_name = "NAME")]
    template: String,

    /// Start from this snapshot instead, by name or id; its size comes with it
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["template", "size", "cpus"])]
    snapshot: Option<String>,

    #[command(flatten)]
    size: SizeArgs,

    /// Set a variable for every process; without a value, take it from here
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Attach a volume, at /persist unless a path follows
    #[arg(long, value_name = "VOLUME[:PATH]")]
    volume: Vec<String>,

    /// Attach a label; labels are shown, so they hold no secrets
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,

    /// What it may reach: off, brokered, restricted, mediated or open [default: off]
    #[arg(long, value_name = "MODE")]
    network: Option<EgressMode>,

    /// In restricted, permit this: HOST, *.HOST, http://HOST, HOST:PORT or
    /// preset:NAME; may be repeated [default: the curated presets]
    #[arg(long, value_name = "ENTRY")]
    allow: Vec<String>,

    /// End it after this time, 10s to 1h [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    /// What happens after that time: terminate or pause [default: terminate]
    #[arg(long, value_name = "WHAT", value_parser = PossibleValuesParser::new(["terminate", "pause"]))]
    on_timeout: Option<String>,

    /// Pause it when nobody has used it for this long, 5s to 1h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    idle_timeout: Option<Duration>,

    /// Resume it when it is used while it is paused
    #[arg(long)]
    auto_resume: bool,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Creates a sandbox.
pub(super) async fn run(configured: &Configured<'_>, arguments: &CreateArgs) -> Outcome<u8> {
    let create = request(arguments)?;
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let waiting = progress::waiting("creating a sandbox");
    let created = client.create_sandbox(&create).await;
    waiting.finish_and_clear();
    let sandbox = created.map_err(|error| {
        let failure = Failure::from(error);
        // The server names the field and nothing else can be asked of it here.
        if failure.message.starts_with("template:") {
            return failure
                .hint("`coldframe image list`, on the server's machine, shows which there are");
        }
        failure
    })?;
    match arguments.json.format() {
        Format::Json => output::json(&sandbox)?,
        Format::Text => output::line(sandbox.id.as_str())?,
    }
    Ok(0)
}

/// The server checks it too, in its own words.
pub(super) fn seconds(timeout: Duration) -> Outcome<u32> {
    if !(Timeout::MIN..=Timeout::MAX).contains(&timeout) {
        return Err(Failure::usage("--timeout must be between 10s and 1h"));
    }
    if timeout.subsec_nanos() != 0 {
        return Err(Failure::usage("--timeout takes whole seconds here"));
    }
    Ok(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX))
}

/// Neither a name nor an id holds a colon.
fn mount(text: &str) -> Mount {
    match text.split_once(':') {
        Some((volume, path)) => Mount { volume: volume.to_owned(), path: Some(path.to_owned()) },
        None => Mount { volume: text.to_owned(), path: None },
    }
}

fn request(arguments: &CreateArgs) -> Outcome<CreateSandbox> {
    let environment = variables::read(&arguments.env, variables::own)?;
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    arguments.size.chosen()?;
    let timeout_seconds = arguments.timeout.map(seconds).transpose()?;
    let idle_timeout_seconds = arguments.idle_timeout.map(|idle| match idle.subsec_nanos() {
        0 => Ok(u32::try_from(idle.as_secs()).unwrap_or(u32::MAX)),
        _ => Err(Failure::usage("--idle-timeout takes whole seconds, 5s to 1h")),
    });
    let template = match arguments.snapshot {
        Some(_) => String::new(),
        None => arguments.template.clone(),
    };
    Ok(CreateSandbox {
        template,
        snapshot: arguments.snapshot.clone(),
        on_timeout: arguments.on_timeout.clone(),
        idle_timeout_seconds: idle_timeout_seconds.transpose()?,
        auto_resume: arguments.auto_resume,
        size: arguments.size.size.map(|size| size.to_string()),
        cpus: arguments.size.cpus,
        memory_mb: arguments.size.memory_mb,
        timeout_seconds,
        network: arguments.network.map(|mode| mode.as_str().to_owned()),
        allow: Some(arguments.allow.clone()).filter(|list| !list.is_empty()),
        env: Variables(environment.expose().map(owned).collect()),
        metadata: labels(&arguments.metadata)?,
        volumes: arguments.volume.iter().map(|text| mount(text)).collect(),
        ..CreateSandbox::default()
    })
}

/// Labels as they were written.
pub(super) fn labels(written: &[String]) -> Outcome<BTreeMap<String, String>> {
    let pairs = written.iter().map(|label| match label.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("--metadata {label}: write it as NAME=VALUE"))),
    });
    pairs.collect()
}
