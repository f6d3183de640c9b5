//! Copying files into a sandbox and out of it.
//!
//! Content streams: the size of a file does not matter. Inside a folder only
//! folders and regular files are copied. A symbolic link there would either
//! carry a file of this machine into a sandbox that only asked for a link to
//! exist, or lie in wait here for the next program that follows it.

mod download;
mod upload;

use std::time::Duration;

use api::exec::OnDisconnect;
use clap::Args;
use domain::id::SandboxId;
use guest_protocol::client::GuestClient;
use indicatif::ProgressBar;
use serde::Serialize;

use super::location::Location;
use crate::{
    commands::{Configured, Json},
    error::{Failure, Kind, Outcome},
    output::{self, Format},
    process::Signals,
    progress,
    remote::{Authority, RemoteGuest, ServerArgs},
};

/// Copy files into a sandbox or out of it
///
/// One end is SANDBOX:PATH, the other a path here, or `-` for standard input or
/// output. Folders are copied with what is in them, as `cp -r` does it: where
/// the destination is not there it becomes the copy, into an existing folder the
/// copy is put under its own name, and `FOLDER/.` means what is in the folder.
/// Symbolic links and special files inside a folder are left out and named on
/// standard error.
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The account inside the sandbox
    #[arg(long, default_value = "user")]
    user: String,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,

    /// What to copy
    #[arg(allow_hyphen_values = true)]
    source: Location,

    /// Where to
    #[arg(allow_hyphen_values = true)]
    destination: Location,
}

/// A copy under way.
struct Copy {
    guest: GuestClient<RemoteGuest>,
    user: String,
    bar: ProgressBar,
    done: Done,
}

/// What was copied.
#[derive(Debug, Default, Serialize)]
struct Done {
    files: u64,
    bytes: u64,
    skipped: Vec<String>,
}

impl Copy {
    /// Leaves something out and says so.
    fn skip(&mut self, path: &str, why: &str) {
        let path = crate::error::printable(path);
        self.bar.suspend(|| output::note(&format!("left out {path}: {why}")));
        self.done.skipped.push(path);
    }

    fn moved(&mut self, n_bytes: usize) {
        self.done.bytes += n_bytes as u64;
        self.bar.inc(n_bytes as u64);
    }
}

/// Copies.
pub(super) async fn run(configured: &Configured<'_>, arguments: &CopyArgs) -> Outcome<u8> {
    let begin = |sandbox: &SandboxId| -> Outcome<Copy> {
        let client = arguments.server.client(configured, Authority::Sandboxes)?;
        let guest = GuestClient::new(RemoteGuest {
            client,
            id: sandbox.clone(),
            on_disconnect: OnDisconnect::Kill,
        });
        let bar = progress::bytes("copying", None);
        bar.enable_steady_tick(Duration::from_millis(200));
        Ok(Copy { guest, user: arguments.user.clone(), bar, done: Done::default() })
    };
    let mut signals = Signals::listen()?;
    let copying = async {
        match (&arguments.source, &arguments.destination) {
            (Location::Here(from), Location::Sandbox(sandbox, to)) => {
                let mut copy = begin(sandbox)?;
                upload::path(&mut copy, from, to).await?;
                Ok(copy)
            }
            (Location::Stream, Location::Sandbox(sandbox, to)) => {
                let mut copy = begin(sandbox)?;
                upload::stream(&mut copy, to).await?;
                Ok(copy)
            }
            (Location::Sandbox(sandbox, from), Location::Here(to)) => {
                let mut copy = begin(sandbox)?;
                download::path(&mut copy, from, to).await?;
                Ok(copy)
            }
            (Location::Sandbox(sandbox, from), Location::Stream) => {
                let mut copy = begin(sandbox)?;
                download::stream(&mut copy, from).await?;
                Ok(copy)
            }
            (Location::Sandbox(..), Location::Sandbox(..)) => {
                Err(Failure::usage("one end of a copy is on this machine")
                    .hint("copy here first, or pipe: coldframe sandbox cp A:FILE - | coldframe sandbox cp - B:FILE"))
            }
            _ => Err(Failure::usage("one end of a copy is in a sandbox")
                .hint("write it as SANDBOX:PATH, such as sbx_…:/workspace/data")),
        }
    };
    // Dropping the copy closes its stream and removes what is half-written.
    let copy: Copy = tokio::select! {
        copied = copying => copied?,
        signal = signals.stop() => {
            let message = format!("signal {signal} ended the copy");
            return Err(Failure::new(Kind::Stopped(signal), message));
        }
    };
    copy.bar.finish_and_clear();
    match (arguments.json.format(), &arguments.destination) {
        (Format::Json, Location::Stream) | (Format::Text, _) => {}
        (Format::Json, _) => output::json(&copy.done)?,
    }
    Ok(0)
}

/// Whether a path means what is in a folder and not the folder.
fn is_contents(path: &[u8]) -> bool {
    path == b"." || path.ends_with(b"/.")
}

/// The last component of a path inside a sandbox.
fn name_of(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!matches!(name, "" | "." | ".." | "~")).then_some(name)
}
