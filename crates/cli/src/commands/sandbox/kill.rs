//! Ending sandboxes.

use clap::Args;
use domain::id::SandboxId;

use crate::{
    commands::{Configured, Json},
    error::{Failure, Outcome},
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

/// End sandboxes; memory and files are gone when this returns
///
/// Ending an ended sandbox succeeds, so that scripts can call this without
/// asking first. All are tried, even if one fails.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// The sandboxes to end
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<SandboxId>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Ends each of them.
pub(super) async fn run(configured: &Configured<'_>, arguments: &KillArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let mut first: Option<Failure> = None;
    for sandbox in &arguments.sandboxes {
        match client.terminate(sandbox).await {
            Ok(()) => match arguments.json.format() {
                Format::Json => {
                    output::json(&serde_json::json!({ "id": sandbox, "terminated": true }))?;
                }
                Format::Text => output::line(sandbox.as_str())?,
            },
            Err(error) => {
                let mut failure = Failure::from(error);
                failure.message = format!("{sandbox}: {}", failure.message);
                match &first {
                    None => first = Some(failure),
                    Some(_) => output::note(&failure.message),
                }
            }
        }
    }
    first.map_or(Ok(0), Err)
}
