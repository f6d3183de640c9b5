//! `cargo xtask bench`: what a sandbox costs, beside other ways to run a program.
//!
//! Everything is measured in one run on one machine, and the ways take turns, so
//! that a busy moment hits all of them. The numbers are shown, kept as JSON and,
//! with `--write`, put into `docs/reference/bench.md`. Nothing is asserted: a
//! slow machine is no defect.
//!
//! Every way runs `/bin/echo ready` on the root file system of the base image:
//! `docker` from an image made of it, `runsc` and `bwrap` from a folder with its
//! content. *First output* is the first byte, *exit* is when the caller has the
//! end: the program has ended and what was made for it is removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};

use crate::{
    binaries::{self, Profile},
    checks, privilege,
    progress::Progress,
    service::{self, Place, Service},
    setup::{self, Purpose},
    workspace,
};

mod crowd;
mod docker;
mod exchange;
mod facts;
mod memory;
mod page;
mod peers;
mod record;
mod round;
mod samples;
mod sandboxes;

use docker::Docker;
use peers::Peers;
use record::Record;
use sandboxes::Sandboxes;

/// Measure
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure starting, executing, and how much memory it takes
    Start(StartArgs),
}

#[derive(Debug, Args)]
struct StartArgs {
    /// How often each way takes its turn
    #[arg(long, default_value_t = 15)]
    rounds: usize,

    /// Leave out the sandboxes by the dozen
    #[arg(long)]
    quick: bool,

    /// Write docs/reference/bench.md
    #[arg(long)]
    write: bool,
}

/// More than any measurement needs at once.
const SETTINGS: &str = "max_sandboxes = 64\nlog = \"debug\"\n";

/// Idle sandboxes whose memory is measured.
const IDLE: [usize; 3] = [1, 10, 50];

/// Sandboxes that are created at the same moment.
const CROWDS: [usize; 3] = [8, 20, 32];

const STEPS: [&str; 7] = [
    "install what is missing",
    "build the programs",
    "build the base image",
    "start dockerd and the server",
    "measure starts",
    "measure commands in a running sandbox",
    "measure many sandboxes",
];

/// Runs `cargo xtask bench`.
pub(crate) fn run(arguments: &BenchArgs) -> anyhow::Result<()> {
    let BenchCommand::Start(arguments) = &arguments.command;
    ensure!(privilege::is_root(), "measuring starts dockerd and sandboxes; run it as root");
    let mut progress = Progress::new("bench", &STEPS);
    progress.step(|| setup::install(Purpose::Bench))?;
    let built = progress.step(|| binaries::build(Profile::Release))?;
    progress.step(checks::build_image)?;

    let cache = workspace::cache()?.join("bench");
    let image = workspace::images()?.join("base");
    let place = Place {
        program: built.coldframe,
        state: cache.join("state"),
        images: workspace::images()?,
        settings: SETTINGS,
    };
    empty(&place.state)?;
    let (root, docker, service) = progress.step(|| {
        let root = unpack(&image, &cache)?;
        let docker = Docker::start(&cache, &root)?;
        Ok((root, docker, Service::start(&place)?))
    })?;
    let peers = Peers::new(&root, &cache);
    let result = measure(&mut progress, arguments, &place, &service, &docker, &peers);
    // Whatever happened, nothing of ours goes on.
    let ended = service::stop(&place.state);
    docker.end()?;
    let mut record = result?;
    ended?;
    record.time_inside(&place.log())?;
    empty(&place.state)?;

    let path = cache.join("start.json");
    fs::write(&path, serde_json::to_string_pretty(&record)?)?;
    let page = page::render(&record);
    println!("\n{page}");
    println!("every sample is in {}", path.display());
    if arguments.write {
        fs::write(workspace::root().join(page::FILE), page)?;
        println!("{} is written", page::FILE);
    }
    Ok(())
}

fn measure(
    progress: &mut Progress,
    arguments: &StartArgs,
    place: &Place,
    service: &Service,
    docker: &Docker,
    peers: &Peers,
) -> anyhow::Result<Record> {
    let sandboxes = Sandboxes::new(place, service)?;
    let mut record = Record::new(facts::gather(place, docker, peers)?);
    progress.step(|| {
        record.starts = round::starts(arguments.rounds, &sandboxes, docker, peers)?;
        Ok(())
    })?;
    progress.step(|| {
        record.commands = round::commands(arguments.rounds * 4, &sandboxes, docker)?;
        Ok(())
    })?;
    progress.step(|| {
        if !arguments.quick {
            record.memory = memory::of_idle(&IDLE, &sandboxes)?;
            record.crowds = crowd::measure(&CROWDS, &sandboxes)?;
        }
        Ok(())
    })?;
    Ok(record)
}

/// The content of the image's root file system as a folder.
fn unpack(image: &Path, cache: &Path) -> anyhow::Result<PathBuf> {
    let manifest = fs::read(image.join("manifest.json")).context("the base image is not there")?;
    let digest = domain::image::digest::Digest::of(&manifest).to_string();
    let root = cache.join("root");
    let mark = cache.join("root.digest");
    if fs::read_to_string(&mark).is_ok_and(|found| found == digest) {
        return Ok(root);
    }
    empty(&root)?;
    let mut unpack = std::process::Command::new("fsck.erofs");
    unpack.arg(format!("--extract={}", root.display())).arg(image.join("rootfs.erofs"));
    let output = unpack.output().context("fsck.erofs could not be started")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(&mark, digest)?;
    Ok(root)
}

/// Makes a folder that is empty.
fn empty(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("emptying {}", folder.display()))?;
    }
    Ok(fs::create_dir_all(folder)?)
}
