//! `cargo xtask demo`: from a fresh clone to a running server, with a walk
//! through one sandbox on the way.
//!
//! The server is left running in the background, because the next thing to do is
//! to use it from the same terminal; `--stop` ends it. It keeps everything in
//! `~/.local/share/coldframe`. With `--once` the walk has a folder of its own,
//! and nothing of it remains.
//!
//! The walk speaks to the server through the `coldframe` program alone, in the
//! words that a user would type, and shows each of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Args;

use crate::{
    binaries::{self, Profile},
    checks, privilege,
    progress::{self, Progress},
    service::{self, Place, Service},
    setup::{self, Purpose},
    workspace,
};

mod walk;

/// Set everything up, walk through a sandbox, and leave a server running
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// End after the walk and leave nothing running
    #[arg(long)]
    once: bool,

    /// End the server that an earlier run left, and its sandboxes
    #[arg(long, conflicts_with = "once")]
    stop: bool,
}

const STEPS: [&str; 8] = [
    "install what is missing",
    "build the programs",
    "build the base image",
    "start the server",
    "create a sandbox",
    "run a program with input",
    "fetch what it wrote",
    "look for a way out",
];

/// Runs `cargo xtask demo`.
pub(crate) fn run(arguments: &DemoArgs) -> anyhow::Result<()> {
    let data = workspace::data()?;
    if arguments.stop {
        return stop(&data);
    }
    let mut progress = Progress::new("demo", &STEPS);
    progress.step(|| setup::install(Purpose::Demo))?;
    let built = progress.step(|| binaries::build(Profile::Release))?;
    progress.step(checks::build_image)?;
    let program = install(&built.coldframe, &data.join("bin"))?;

    let folder = if arguments.once { Some(temporary()?) } else { None };
    let place = Place {
        program,
        state: folder.clone().unwrap_or_else(|| data.clone()),
        images: workspace::images()?,
        settings: "",
    };
    let result = walk(&mut progress, &place, arguments.once);
    if let Some(folder) = folder {
        remove(&folder)?;
    }
    let (service, sandbox) = result?;
    println!("\nWhat took how long:");
    for (step, taken) in progress.taken() {
        println!("  {step:<28} {}", progress::shown(*taken));
    }
    if !arguments.once {
        farewell(&place, &service, &sandbox)?;
    }
    Ok(())
}

/// Ends what an earlier run left: the sandboxes, which outlive a server, and then
/// the server.
fn stop(data: &Path) -> anyhow::Result<()> {
    let place = Place {
        program: data.join("bin/coldframe"),
        state: data.to_owned(),
        images: workspace::images()?,
        settings: "",
    };
    if !service::is_running(data) {
        println!("no server of the demo runs");
        return Ok(());
    }
    let running = walk::show(place.command()?.args(["sandbox", "list", "--state", "running"]))?;
    for sandbox in running.lines().filter_map(|line| line.split('\t').next()) {
        walk::show(place.command()?.args(["sandbox", "kill", sandbox]))?;
    }
    service::stop(data)
}

/// Starts the server and walks. Leaves both the server and the sandbox running
/// if they are to stay and the walk has succeeded.
fn walk(progress: &mut Progress, place: &Place, once: bool) -> anyhow::Result<(Service, String)> {
    let service = progress.step(|| Service::start(place))?;
    let sandbox = progress.step(|| walk::create(place));
    let walked = match &sandbox {
        Ok(sandbox) => walk::through(progress, place, sandbox),
        Err(_) => Ok(()),
    };
    let mut ended = Ok(());
    if once || sandbox.is_err() || walked.is_err() {
        ended = end(place, sandbox.as_deref().ok());
    }
    // The reason of a failed walk matters more than that of a failed end.
    let sandbox = sandbox?;
    walked.and(ended)?;
    Ok((service, sandbox))
}

/// Ends the sandbox, which would outlive its server, and then the server.
fn end(place: &Place, sandbox: Option<&str>) -> anyhow::Result<()> {
    if let Some(sandbox) = sandbox {
        walk::show(place.command()?.args(["sandbox", "kill", sandbox]))?;
    }
    service::stop(&place.state)
}

/// Puts the program where it stays when the build results are cleaned.
fn install(built: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let program = folder.join("coldframe");
    let run = |command: &mut Command| -> anyhow::Result<()> {
        ensure!(command.status()?.success(), "{} could not be written", program.display());
        Ok(())
    };
    // `install` replaces the file rather than writing into it, so a server that
    // runs from it is not disturbed.
    run(privilege::command("install")?.arg("-D").arg(built).arg(&program))?;
    Ok(program)
}

fn temporary() -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("coldframe-demo-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    let status =
        privilege::command("rm")?.args(["-rf", "--one-file-system"]).arg(folder).status()?;
    ensure!(status.success(), "{} could not be removed", folder.display());
    Ok(())
}

fn farewell(place: &Place, service: &Service, sandbox: &str) -> anyhow::Result<()> {
    let sudo = if privilege::is_root() { "" } else { "sudo -E " };
    let program = place.program.display();
    let bin = place.program.parent().unwrap_or(&place.state).display();
    println!(
        "\nThe server runs in the background (process {}); its log is {}.\n\n\
         To use it from this terminal, by its command line or over HTTP:\n\n\
         \x20 export PATH=\"{bin}:$PATH\"\n\
         \x20 export COLDFRAME_URL={}\n\
         \x20 export COLDFRAME_TOKEN={}\n\n\
         To end it and its sandboxes:\n\n\
         \x20 cargo xtask demo --stop\n\n\
         A shell in a sandbox of its own, with no server:\n\n\
         \x20 {sudo}{program} run -it -- bash\n\n\
         A shell in the sandbox of the walk, which ends in {}:\n\n\
         \x20 {sudo}{program} sandbox shell {sandbox}",
        service.process,
        place.log().display(),
        service.url,
        service.token()?,
        progress::shown(Duration::from_secs(walk::MINUTES * 60)),
    );
    Ok(())
}
