//! Running a program in a sandbox.

use std::time::Duration;

use api::exec::OnDisconnect;
use clap::Args;
use domain::id::SandboxId;
use guest_protocol::client::GuestClient;

use crate::{
    commands::{Configured, Json, ProgramArgs, report},
    error::{Failure, Outcome},
    output::Format,
    process::{self, Input, Launch, Signals, Sink, Terminal},
    remote::{Authority, RemoteGuest, ServerArgs},
    terminal,
};

/// Run a program in a sandbox and exit with its code
///
/// Output is passed on unchanged, INT, TERM, HUP and QUIT are forwarded; the
/// same signal twice within two seconds stops waiting and kills the program.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    program: ProgramArgs,

    /// What becomes of the program when this command ends before it, even by a
    /// crash or a lost connection: kill or continue
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    on_disconnect: OnDisconnect,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,

    /// The sandbox
    sandbox: SandboxId,

    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Open a shell in a sandbox
///
/// Standard input must be a terminal. To run commands from a pipe, use
/// `coldframe sandbox exec -i SANDBOX -- bash`.
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// The account to run as
    #[arg(long, default_value = "user")]
    user: String,

    /// The directory to begin in [default: the account's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,

    #[command(flatten)]
    server: ServerArgs,

    /// The sandbox
    sandbox: SandboxId,
}

/// Runs a program.
pub(super) async fn exec(configured: &Configured<'_>, arguments: &ExecArgs) -> Outcome<u8> {
    let launch = arguments.program.launch(&arguments.command)?;
    let (client, id) = (&arguments.server, &arguments.sandbox);
    let guest = guest(configured, client, id, arguments.on_disconnect)?;
    follow(&guest, launch, arguments.json.format()).await
}

/// Runs a login shell on a terminal.
pub(super) async fn shell(configured: &Configured<'_>, arguments: &ShellArgs) -> Outcome<u8> {
    terminal::required().map_err(|_| no_terminal(&arguments.sandbox))?;
    let launch = Launch {
        command: ["/bin/bash", "-l"].map(str::to_owned).to_vec(),
        environment: [].into(),
        cwd: arguments.cwd.clone(),
        user: arguments.user.clone(),
        timeout: None,
        input: Input::Ours,
        terminal: Terminal::Yes,
    };
    // As with a terminal that was closed, nothing may stay behind it.
    let (client, id) = (&arguments.server, &arguments.sandbox);
    let guest = guest(configured, client, id, OnDisconnect::Kill)?;
    follow(&guest, launch, Format::Text).await
}

fn no_terminal(sandbox: &SandboxId) -> Failure {
    Failure::usage("a shell needs a terminal on standard input")
        .hint(format!("to run commands from a pipe: coldframe sandbox exec -i {sandbox} -- bash"))
}

fn guest(
    configured: &Configured<'_>,
    server: &ServerArgs,
    sandbox: &SandboxId,
    on_disconnect: OnDisconnect,
) -> Outcome<GuestClient<RemoteGuest>> {
    let client = server.client(configured, Authority::Sandboxes)?;
    Ok(GuestClient::new(RemoteGuest { client, id: sandbox.clone(), on_disconnect }))
}

async fn follow(guest: &GuestClient<RemoteGuest>, launch: Launch, format: Format) -> Outcome<u8> {
    let mut signals = Signals::listen()?;
    let mut sink = match format {
        Format::Text => Sink::ours()?,
        Format::Json => Sink::memory(),
    };
    let begun = std::time::Instant::now();
    let ended = process::drive(guest, &launch, &mut sink, &mut signals).await?;
    let took: Duration = begun.elapsed();
    report(&launch, ended, sink, took)
}
