//! `cargo xtask build`: the guest's program, and the host's with it inside.
//!
//! `guestd` is built first, static, because it has to start in a machine with no
//! libraries at all. `coldframe` then carries its bytes, so that the two cannot
//! be of different versions.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, ValueEnum};

use crate::workspace;

/// The guest is built for this triple explicitly, so that its flags do not reach
/// build scripts, which run on the host.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Build the programs
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// How to build the host's program
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
}

/// How the host's program is built. The guest's always is as it is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Fast to run: for use and for measuring.
    Release,
    /// Fast to build: for tests.
    Dev,
}

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    pub(crate) guestd: PathBuf,
    pub(crate) coldframe: PathBuf,
}

/// Runs `cargo xtask build`.
pub(crate) fn run(arguments: &BuildArgs) -> anyhow::Result<()> {
    let binaries = build(arguments.profile)?;
    println!("{}\n{}", binaries.guestd.display(), binaries.coldframe.display());
    Ok(())
}

/// Builds both programs.
pub(crate) fn build(profile: Profile) -> anyhow::Result<Binaries> {
    let guestd = guestd()?;
    let mut cargo = workspace::cargo()?;
    cargo.args(["build", "--locked", "--package", "cli", "--bin", "coldframe"]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    let status = cargo.env("COLDFRAME_GUESTD", &guestd).status()?;
    ensure!(status.success(), "coldframe does not build; cargo says why above");
    let folder = if profile == Profile::Release { "release" } else { "debug" };
    Ok(Binaries { guestd, coldframe: workspace::target()?.join(folder).join("coldframe") })
}

/// Builds the guest's program.
pub(crate) fn guestd() -> anyhow::Result<PathBuf> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut flags = format!("{flags} -C target-feature=+crt-static");
    // The guest is inside every sandbox: it names no folder of this machine. The
    // workspace's own files have relative names already.
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    if let Some(home) = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))) {
        flags.push_str(&format!(" --remap-path-prefix={}=cargo", home.display()));
    }
    let mut cargo = workspace::cargo()?;
    cargo.args(["build", "--locked", "--package", "guest", "--bin", "guestd"]);
    cargo.args(["--profile", "guest", "--target", TARGET]);
    let status = cargo.env("RUSTFLAGS", flags.trim()).status()?;
    ensure!(status.success(), "guestd does not build; cargo says why above");
    Ok(workspace::target()?.join(TARGET).join("guest").join("guestd"))
}
