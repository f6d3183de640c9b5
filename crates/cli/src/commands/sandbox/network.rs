//! Changing what a sandbox may reach.

use api::egress::SetEgress;
use clap::Args;
use domain::{id::SandboxId, mode::EgressMode};

use crate::{
    commands::{Configured, Json},
    error::Outcome,
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

/// Change what a running sandbox may reach
///
/// It holds at once, and for connections that exist: those that the new rules do
/// not permit end. A mode can always be narrowed; how far it can be widened is the
/// server's setting `networks`.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// Its id
    sandbox: SandboxId,

    /// off, brokered, restricted, mediated or open
    mode: EgressMode,

    /// In restricted, permit this: HOST, *.HOST, http://HOST, HOST:PORT or
    /// preset:NAME; may be repeated [default: the curated presets]
    #[arg(long, value_name = "ENTRY")]
    allow: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Changes it.
pub(super) async fn run(configured: &Configured<'_>, arguments: &NetworkArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let allow = Some(arguments.allow.clone()).filter(|list| !list.is_empty());
    let set = SetEgress { network: arguments.mode.as_str().to_owned(), allow };
    let sandbox = client.set_egress(&arguments.sandbox, &set).await?;
    match arguments.json.format() {
        Format::Json => output::json(&sandbox)?,
        Format::Text => output::line(&sandbox.network)?,
    }
    Ok(0)
}
