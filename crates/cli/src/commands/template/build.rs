//! Building a template: what is sent, and what is shown meanwhile.

use std::{fs, path::PathBuf};

use api::templates::{BuildEvent, BuildTemplate};
use clap::Args;
use domain::{
    mode::EgressMode,
    template::{
        TemplateName,
        description::{Description, MAX_BYTES},
    },
};
use futures::stream;
use tokio::sync::mpsc;

use super::pack::{self, FILE};
use crate::{
    commands::{Configured, Json, SizeArgs},
    error::{Failure, Kind, Outcome, printable},
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

/// Build a template from a description
///
/// The description is a file much like a Dockerfile: FROM, RUN, COPY, ENV,
/// WORKDIR, USER, and START and READY for what runs in every sandbox of the
/// template. Steps that an earlier build has done are not done again. The name
/// stands for the old template until the new one is whole; interrupting leaves
/// it as it was.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// What it is to be called
    name: TemplateName,

    /// The description
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// The folder that COPY takes files from [default: that of the description]
    #[arg(long, value_name = "DIR")]
    context: Option<PathBuf>,

    #[command(flatten)]
    size: SizeArgs,

    /// What the steps may reach: off, brokered, restricted, mediated or open
    #[arg(long, value_name = "MODE", default_value = "off")]
    network: EgressMode,

    /// In restricted, permit this, as in `sandbox create`; may be repeated
    #[arg(long, value_name = "ENTRY")]
    allow: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Builds a template.
pub(super) async fn run(configured: &Configured<'_>, arguments: &BuildArgs) -> Outcome<u8> {
    let shown = arguments.file.display();
    let unreadable = |error| Failure::usage(format!("{shown} cannot be read: {error}"));
    if fs::metadata(&arguments.file).map_err(unreadable)?.len() > MAX_BYTES as u64 {
        return Err(Failure::usage(format!("{shown} is longer than {MAX_BYTES} bytes")));
    }
    let text = fs::read_to_string(&arguments.file).map_err(unreadable)?;
    let description =
        Description::parse(&text).map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    let folder = match &arguments.context {
        Some(folder) => folder.clone(),
        None => match arguments.file.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        },
    };
    let paths = pack::needed(&description);
    // Before anything is sent, so that a mistake is told at once.
    pack::check(&folder, &paths).map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    arguments.size.chosen()?;
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let query = BuildTemplate {
        name: arguments.name.to_string(),
        file: Some(FILE.to_owned()),
        size: arguments.size.size.map(|size| size.to_string()),
        cpus: arguments.size.cpus,
        memory_mb: arguments.size.memory_mb,
        network: Some(arguments.network.as_str().to_owned()),
        allow: Some(arguments.allow.join(",")).filter(|list| !list.is_empty()),
    };
    let (pieces, queue) = mpsc::channel(4);
    let packing = tokio::task::spawn_blocking(move || pack::write(&text, &folder, &paths, &pieces));
    let body =
        stream::unfold(queue, |mut queue| async { queue.recv().await.map(|piece| (piece, queue)) });
    let begun = client.build_template(&query, reqwest::Body::wrap_stream(body)).await;
    // What kept the files from being sent says more than that they were not.
    if let Ok(Err(error)) = packing.await
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        return Err(Failure::usage(format!("the files cannot be sent: {error}")));
    }
    let mut build = begun?;
    while let Some(event) = build.next().await? {
        if arguments.json.format() == Format::Json && event != BuildEvent::Keepalive {
            output::json(&event)?;
        }
        match event {
            BuildEvent::Built { template } => {
                if arguments.json.format() == Format::Text {
                    output::line(&template.name)?;
                }
                return Ok(0);
            }
            BuildEvent::Failed { problem } => {
                return Err(Failure::refused(printable(&problem.detail)));
            }
            event if arguments.json.format() == Format::Text => show(event),
            _ => {}
        }
    }
    Err(Failure::new(Kind::Unreachable, "the build ended without a word")
        .hint("look at the server's log"))
}

/// What happens, for people. The result alone goes to standard output.
fn show(event: BuildEvent) {
    match event {
        BuildEvent::Step { number, of, text, cached, .. } => {
            let cached = if cached { " (done before)" } else { "" };
            output::note(&format!("[{number}/{of}] {}{cached}", printable(&text)));
        }
        BuildEvent::Output { text, .. } => {
            for line in text.lines() {
                output::note(&format!("  {}", printable(line)));
            }
        }
        BuildEvent::Note { text } => output::note(&printable(&text)),
        BuildEvent::Keepalive | BuildEvent::Built { .. } | BuildEvent::Failed { .. } => {}
    }
}
