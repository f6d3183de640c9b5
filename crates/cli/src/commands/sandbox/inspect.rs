//! Looking at sandboxes.

use std::io::IsTerminal as _;

use api::sandboxes::{ListSandboxes, Sandbox};
use clap::{Args, builder::PossibleValuesParser};
use domain::{id::SandboxId, phase::Phase};

use crate::{
    commands::{Configured, Json},
    error::Outcome,
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

/// List sandboxes, newest first
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those in this state
    #[arg(long, value_parser = PossibleValuesParser::new(Phase::ALL.map(Phase::as_str)))]
    state: Option<String>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Show a sandbox
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Its id
    sandbox: SandboxId,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Print the last output of a sandbox's console
///
/// That is what its kernel and its first process say, not what programs print.
/// While all is well they say nothing.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The sandbox
    sandbox: SandboxId,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Lists all pages.
pub(super) async fn list(configured: &Configured<'_>, arguments: &ListArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let mut query =
        ListSandboxes { state: arguments.state.clone(), limit: Some(100), cursor: None };
    let mut sandboxes = Vec::new();
    loop {
        let page = client.list_sandboxes(&query).await?;
        sandboxes.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    if arguments.json.format() == Format::Json {
        output::json(&sandboxes)?;
        return Ok(0);
    }
    let rows: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| {
            vec![
                sandbox.id.to_string(),
                sandbox.state.clone(),
                sandbox.template.clone(),
                size(sandbox),
                sandbox.created_at.to_string(),
                sandbox.expires_at.map(|time| time.to_string()).unwrap_or_default(),
            ]
        })
        .collect();
    output::table(&["id", "state", "template", "size", "created", "expires"], &rows)?;
    Ok(0)
}

/// Shows one, a field a line.
pub(super) async fn get(configured: &Configured<'_>, arguments: &GetArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let sandbox = client.sandbox(&arguments.sandbox).await?;
    if arguments.json.format() == Format::Json {
        output::json(&sandbox)?;
        return Ok(0);
    }
    let time = |time: Option<api::time::Time>| time.map(|time| time.to_string());
    let ending = sandbox.ending.as_ref();
    let mut rows = vec![
        ("id", Some(sandbox.id.to_string())),
        ("state", Some(sandbox.state.clone())),
        ("ending", ending.map(|ending| format!("{} ({})", ending.detail, ending.code))),
        ("template", Some(sandbox.template.clone())),
        ("image", Some(sandbox.image_digest.clone())),
        ("size", Some(size(&sandbox))),
        ("disk", Some(format!("{} MiB", sandbox.disk_mb))),
        ("network", Some(sandbox.network.clone())),
        ("allow", Some(sandbox.allow.join(" ")).filter(|list| !list.is_empty())),
        ("region", Some(sandbox.region.clone())),
        ("created", Some(sandbox.created_at.to_string())),
        ("started", time(sandbox.started_at)),
        ("expires", time(sandbox.expires_at)),
        ("at the limit", (sandbox.on_timeout == "pause").then(|| "pause".to_owned())),
        ("pause when idle", sandbox.idle_timeout_seconds.map(|idle| format!("{idle} s"))),
        ("auto-resume", sandbox.auto_resume.then(|| "yes".to_owned())),
        ("paused", time(sandbox.paused_at)),
        ("time left", sandbox.remaining_seconds.map(|left| format!("{left} s"))),
        ("snapshot", sandbox.snapshot.as_ref().map(ToString::to_string)),
        ("ended", time(sandbox.ended_at)),
    ];
    for (name, value) in &sandbox.metadata {
        rows.push(("label", Some(format!("{name}={value}"))));
    }
    let rows: Vec<_> =
        rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?])).collect();
    output::table(&["field", "value"], &rows)?;
    Ok(0)
}

/// Prints the console.
pub(super) async fn logs(configured: &Configured<'_>, arguments: &LogsArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let console = client.console(&arguments.sandbox).await?;
    let text = String::from_utf8_lossy(&console);
    if console.is_empty() && arguments.json.format() == Format::Text {
        output::note(
            "the console is empty, as it is while all is well; what programs print is read where they run",
        );
    }
    match arguments.json.format() {
        Format::Json => {
            output::json(&serde_json::json!({ "id": arguments.sandbox, "console": text }))?;
        }
        // Whoever is inside writes this; it must not move a cursor.
        Format::Text if std::io::stdout().is_terminal() => {
            output::bytes(output::calm(&text).as_bytes())?;
        }
        Format::Text => output::bytes(&console)?,
    }
    Ok(0)
}

fn size(sandbox: &Sandbox) -> String {
    let numbers = format!("{} cpu {} MiB", sandbox.cpus, sandbox.memory_mb);
    match &sandbox.size {
        Some(size) => format!("{size} ({numbers})"),
        None => numbers,
    }
}
