//! What sandboxes reached, and what they would reach.

use api::egress::{EgressLine, ExplainEgress, ListEgress};
use bytes::{Buf as _, BytesMut};
use clap::{Args, Subcommand};
use domain::{id::SandboxId, mode::EgressMode};
use http_body_util::BodyExt as _;

use super::{Configured, Json, block_on};
use crate::{
    error::{Failure, Outcome},
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

/// More than a line of the log is long.
const MAX_LINE: usize = 64 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum EgressCommand {
    Log(LogArgs),
    Explain(ExplainArgs),
}

/// Print what the gateway decided, oldest first
///
/// One line for each decision: when, which sandbox, what came of it, whereto, by
/// which rule, bytes out and in.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Only decisions about this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,

    /// How many of the newest, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,

    /// Go on printing as more is decided
    #[arg(long, short)]
    follow: bool,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Say what would happen to a request, and by which rule
///
/// Nothing is sent and no name is looked up. Exits with 1 if it would be refused.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Whereto, such as `https://example.org/`
    #[arg(value_name = "URL")]
    destination: String,

    /// Under the rules of this sandbox
    #[arg(long, value_name = "SANDBOX", conflicts_with_all = ["network", "allow"])]
    sandbox: Option<SandboxId>,

    /// For this account of the sandbox [default: the ordinary one]
    #[arg(long, value_name = "UID", requires = "sandbox")]
    uid: Option<u32>,

    /// Under the rules of a new sandbox in this mode [default: restricted]
    #[arg(long, value_name = "MODE")]
    network: Option<EgressMode>,

    /// With this in its list; may be repeated [default: the curated presets]
    #[arg(long, value_name = "ENTRY")]
    allow: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

impl EgressCommand {
    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Log(arguments) => arguments.json.format(),
            Self::Explain(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on the way out.
pub(crate) fn run(configured: &Configured<'_>, command: EgressCommand) -> Outcome<u8> {
    match command {
        EgressCommand::Log(arguments) => block_on(log(configured, &arguments)),
        EgressCommand::Explain(arguments) => block_on(explain(configured, &arguments)),
    }
}

async fn log(configured: &Configured<'_>, arguments: &LogArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let query = ListEgress {
        sandbox: arguments.sandbox.clone(),
        limit: Some(arguments.limit),
        ..ListEgress::default()
    };
    if !arguments.follow {
        let mut lines = client.list_egress(&query).await?.items;
        lines.reverse();
        for line in &lines {
            show(line, arguments.json.format())?;
        }
        return Ok(0);
    }
    let mut body = client.follow_egress(&query).await?.into_body();
    let mut waiting = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let broken = |_| Failure::refused("the server stopped sending the log; ask again");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        waiting.extend_from_slice(&data);
        while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
            let line = waiting.split_to(end);
            waiting.advance(1);
            let line = serde_json::from_slice(&line)
                .map_err(|_| Failure::refused("the server sent a line that is none"))?;
            show(&line, arguments.json.format())?;
        }
        if waiting.len() > MAX_LINE {
            return Err(Failure::refused("the server sent a line without an end"));
        }
    }
    Ok(0)
}

fn show(line: &EgressLine, format: Format) -> Outcome<()> {
    if format == Format::Json {
        return output::json(line);
    }
    let who = match (&line.session, line.uid) {
        (Some(session), _) => format!("{}/{session}", line.sandbox),
        (None, _) => line.sandbox.to_string(),
    };
    let text = format!(
        "{} {who} {} {} {} [{}] out={} in={} {}ms",
        line.at,
        line.front,
        line.outcome,
        line.destination,
        line.rule,
        line.bytes_out,
        line.bytes_in,
        line.duration_ms,
    );
    if line.dropped > 0 {
        output::line(&format!("{} {} ({} more left out)", line.at, line.sandbox, line.dropped))?;
    }
    output::line(&output::calm(&text))
}

async fn explain(configured: &Configured<'_>, arguments: &ExplainArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let explain = ExplainEgress {
        url: arguments.destination.clone(),
        sandbox: arguments.sandbox.clone(),
        uid: arguments.uid,
        network: arguments.network.map(|mode| mode.as_str().to_owned()),
        allow: Some(arguments.allow.clone()).filter(|list| !list.is_empty()),
    };
    let told = client.explain_egress(&explain).await?;
    match arguments.json.format() {
        Format::Json => output::json(&told)?,
        Format::Text => {
            let rows: Vec<_> = told
                .steps
                .iter()
                .map(|step| vec![step.question.clone(), step.answer.clone()])
                .collect();
            output::table(&["step", "outcome"], &rows)?;
            output::line(&format!("{}: {}", told.outcome, told.detail))?;
        }
    }
    Ok(u8::from(told.outcome != "allowed"))
}
