//! Snapshots of a server.

use std::time::Duration;

use api::snapshots::{CreateSnapshot, ListSnapshots};
use clap::{Args, Subcommand};
use domain::id::SandboxId;

use super::{Configured, Json, block_on};
use crate::{
    duration,
    error::{Failure, Outcome},
    output::{self, Format},
    progress,
    remote::{Authority, ServerArgs},
};

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    Create(CreateArgs),
    List(ListArgs),
    Get(GetArgs),
    Delete(DeleteArgs),
}

/// Keep what a running sandbox is under a name, and print the snapshot's id
///
/// The sandbox stands still for a moment and goes on. The snapshot holds
/// everything that the sandbox holds, secrets in memory included.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The sandbox
    sandbox: SandboxId,

    /// What to call it: 1 to 64 small letters, digits, `.`, `_`, `-`
    name: String,

    /// Remove it after this time, 1m to a year [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep: Option<Duration>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// List snapshots, newest first
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this sandbox
    #[arg(long)]
    sandbox: Option<SandboxId>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Show a snapshot
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Its name or its id
    snapshot: String,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Remove snapshots; nothing can be started from them when this returns
///
/// Sandboxes that were started from one run on.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Their names or ids
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

impl SnapshotCommand {
    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Create(arguments) => arguments.json.format(),
            Self::List(arguments) => arguments.json.format(),
            Self::Get(arguments) => arguments.json.format(),
            Self::Delete(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on snapshots.
pub(crate) fn run(configured: &Configured<'_>, command: SnapshotCommand) -> Outcome<u8> {
    match command {
        SnapshotCommand::Create(arguments) => block_on(create(configured, &arguments)),
        SnapshotCommand::List(arguments) => block_on(list(configured, &arguments)),
        SnapshotCommand::Get(arguments) => block_on(get(configured, &arguments)),
        SnapshotCommand::Delete(arguments) => block_on(delete(configured, &arguments)),
    }
}

async fn create(configured: &Configured<'_>, arguments: &CreateArgs) -> Outcome<u8> {
    let keep = arguments.keep.map(|keep| {
        let seconds = u32::try_from(keep.as_secs()).ok().filter(|_| keep.subsec_nanos() == 0);
        seconds.ok_or_else(|| Failure::usage("--keep takes whole seconds, 1m to a year"))
    });
    let create = CreateSnapshot { name: arguments.name.clone(), keep_seconds: keep.transpose()? };
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let waiting = progress::waiting("writing the snapshot");
    let created = client.create_snapshot(&arguments.sandbox, &create).await;
    waiting.finish_and_clear();
    let snapshot = created?;
    match arguments.json.format() {
        Format::Json => output::json(&snapshot)?,
        Format::Text => output::line(snapshot.id.as_str())?,
    }
    Ok(0)
}

async fn list(configured: &Configured<'_>, arguments: &ListArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let sandbox = arguments.sandbox.as_ref().map(ToString::to_string);
    let mut query = ListSnapshots { sandbox, limit: Some(100), cursor: None };
    let mut snapshots = Vec::new();
    loop {
        let page = client.list_snapshots(&query).await?;
        snapshots.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    if arguments.json.format() == Format::Json {
        output::json(&snapshots)?;
        return Ok(0);
    }
    let rows: Vec<_> = snapshots
        .iter()
        .map(|snapshot| {
            vec![
                snapshot.name.clone().unwrap_or_default(),
                snapshot.id.to_string(),
                snapshot.state.clone(),
                size(snapshot.stored_bytes),
                snapshot.sandbox.to_string(),
                snapshot.created_at.to_string(),
                snapshot.expires_at.map(|time| time.to_string()).unwrap_or_default(),
            ]
        })
        .collect();
    output::table(&["name", "id", "state", "size", "sandbox", "created", "expires"], &rows)?;
    Ok(0)
}

async fn get(configured: &Configured<'_>, arguments: &GetArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let snapshot = client.snapshot(&arguments.snapshot).await?;
    if arguments.json.format() == Format::Json {
        output::json(&snapshot)?;
        return Ok(0);
    }
    let rows = [
        ("id", Some(snapshot.id.to_string())),
        ("name", snapshot.name.clone()),
        ("state", Some(snapshot.state.clone())),
        ("kind", Some(snapshot.kind.clone())),
        ("sandbox", Some(snapshot.sandbox.to_string())),
        ("parent", snapshot.parent.as_ref().map(ToString::to_string)),
        ("template", Some(snapshot.template.clone())),
        ("image", Some(snapshot.image_digest.clone())),
        ("machine", Some(format!("{} cpu {} MiB", snapshot.cpus, snapshot.memory_mb))),
        ("stored", Some(size(snapshot.stored_bytes))),
        ("memory", Some(size(snapshot.memory_bytes))),
        ("region", Some(snapshot.region.clone())),
        ("created", Some(snapshot.created_at.to_string())),
        ("expires", snapshot.expires_at.map(|time| time.to_string())),
    ];
    let rows: Vec<_> =
        rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?])).collect();
    output::table(&["field", "value"], &rows)?;
    Ok(0)
}

async fn delete(configured: &Configured<'_>, arguments: &DeleteArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    for snapshot in &arguments.snapshots {
        client.delete_snapshot(snapshot).await?;
        match arguments.json.format() {
            Format::Json => {
                output::json(&serde_json::json!({ "snapshot": snapshot, "deleted": true }))?;
            }
            Format::Text => output::line(snapshot)?,
        }
    }
    Ok(0)
}

fn size(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1024 * 1024))
}
