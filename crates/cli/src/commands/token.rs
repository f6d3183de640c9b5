//! Tokens of a server.

use api::tokens::CreateToken;
use clap::{Args, Subcommand};
use domain::{id::TokenId, scope::Scopes};

use super::{Configured, Json, block_on};
use crate::{
    error::{Failure, Outcome},
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a token and show it this once
///
/// Only a digest is kept, so a token that was lost is replaced by a new one.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What it may do: `sandboxes:read`, `sandboxes:write` or both; or `admin` alone
    #[arg(long, value_name = "SCOPES", default_value = "sandboxes:read,sandboxes:write")]
    scopes: String,

    /// A name for people
    #[arg(long)]
    name: Option<String>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// List the tokens, without their texts
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Revoke tokens at once
///
/// Revoking a revoked token succeeds.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// The ids of the tokens, as `token list` shows them
    #[arg(required = true, value_name = "TOKEN_ID")]
    tokens: Vec<TokenId>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

impl TokenCommand {
    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Create(arguments) => arguments.json.format(),
            Self::List(arguments) => arguments.json.format(),
            Self::Revoke(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on tokens.
pub(crate) fn run(configured: &Configured<'_>, command: TokenCommand) -> Outcome<u8> {
    match command {
        TokenCommand::Create(arguments) => block_on(create(configured, &arguments)),
        TokenCommand::List(arguments) => block_on(list(configured, &arguments)),
        TokenCommand::Revoke(arguments) => block_on(revoke(configured, &arguments)),
    }
}

async fn create(configured: &Configured<'_>, arguments: &CreateArgs) -> Outcome<u8> {
    let scopes: Scopes =
        arguments.scopes.parse().map_err(|error| Failure::usage(format!("--scopes: {error}")))?;
    let scopes = scopes.as_slice().iter().map(ToString::to_string).collect();
    let client = arguments.server.client(configured, Authority::Administrator)?;
    let created =
        client.create_token(&CreateToken { scopes, name: arguments.name.clone() }).await?;
    match arguments.json.format() {
        Format::Json => output::json(&created)?,
        Format::Text => {
            output::note(&format!("{} may {}", created.id, created.scopes.join(", ")));
            output::line(&created.token)?;
        }
    }
    Ok(0)
}

async fn list(configured: &Configured<'_>, arguments: &ListArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Administrator)?;
    let tokens = client.list_tokens().await?;
    if arguments.json.format() == Format::Json {
        output::json(&tokens)?;
        return Ok(0);
    }
    let rows: Vec<_> = tokens
        .iter()
        .map(|token| {
            vec![
                token.id.to_string(),
                token.scopes.join(","),
                token.created_at.to_string(),
                token.name.clone().unwrap_or_default(),
            ]
        })
        .collect();
    output::table(&["id", "scopes", "created", "name"], &rows)?;
    Ok(0)
}

async fn revoke(configured: &Configured<'_>, arguments: &RevokeArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Administrator)?;
    for token in &arguments.tokens {
        client.revoke_token(token).await?;
        match arguments.json.format() {
            Format::Json => output::json(&serde_json::json!({ "id": token, "revoked": true }))?,
            Format::Text => output::line(token.as_str())?,
        }
    }
    Ok(0)
}
