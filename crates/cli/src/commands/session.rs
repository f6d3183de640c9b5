//! Sessions of a sandbox.

use api::sessions::CreateSession;
use clap::{Args, Subcommand};
use domain::id::{SandboxId, SessionId};

use super::{Configured, Json, block_on};
use crate::{
    error::Outcome,
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    Create(CreateArgs),
    List(ListArgs),
    End(EndArgs),
}

/// Make a session: what its account sends is attributed to it
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The sandbox it works in
    sandbox: SandboxId,

    /// Its account in the sandbox, 1000 to 65533
    #[arg(long, value_name = "UID")]
    uid: u32,

    /// Somebody is there to be asked
    #[arg(long)]
    attended: bool,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// List the sessions of a sandbox
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// The sandbox
    sandbox: SandboxId,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// End sessions; their programs run on
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// The sandbox
    sandbox: SandboxId,

    /// The sessions to end
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<SessionId>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

impl SessionCommand {
    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Create(arguments) => arguments.json.format(),
            Self::List(arguments) => arguments.json.format(),
            Self::End(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on sessions.
pub(crate) fn run(configured: &Configured<'_>, command: SessionCommand) -> Outcome<u8> {
    match command {
        SessionCommand::Create(arguments) => block_on(create(configured, &arguments)),
        SessionCommand::List(arguments) => block_on(list(configured, &arguments)),
        SessionCommand::End(arguments) => block_on(end(configured, &arguments)),
    }
}

async fn create(configured: &Configured<'_>, arguments: &CreateArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let create = CreateSession { uid: arguments.uid, attended: arguments.attended };
    let session = client.create_session(&arguments.sandbox, &create).await?;
    match arguments.json.format() {
        Format::Json => output::json(&session)?,
        Format::Text => output::line(session.id.as_str())?,
    }
    Ok(0)
}

async fn list(configured: &Configured<'_>, arguments: &ListArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let sessions = client.list_sessions(&arguments.sandbox).await?;
    if arguments.json.format() == Format::Json {
        output::json(&sessions)?;
        return Ok(0);
    }
    let rows: Vec<_> = sessions
        .iter()
        .map(|session| {
            let attended = if session.attended { "yes" } else { "no" };
            vec![
                session.id.to_string(),
                session.uid.to_string(),
                attended.to_owned(),
                session.created_at.to_string(),
            ]
        })
        .collect();
    output::table(&["id", "uid", "attended", "created"], &rows)?;
    Ok(0)
}

async fn end(configured: &Configured<'_>, arguments: &EndArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    for session in &arguments.sessions {
        client.end_session(&arguments.sandbox, session).await?;
        match arguments.json.format() {
            Format::Json => output::json(&serde_json::json!({ "id": session, "ended": true }))?,
            Format::Text => output::line(session.as_str())?,
        }
    }
    Ok(0)
}
