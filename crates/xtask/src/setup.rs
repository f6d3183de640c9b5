//! `cargo xtask setup`: installs what a fresh Debian machine lacks.
//!
//! What is there already is left alone, whoever installed it, so a second run
//! does nothing. Nothing is configured and no service is started: every program
//! that the tasks need to run, they start themselves.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};

use crate::{privilege, progress::Progress, workspace};

/// Install what this machine lacks
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    /// What the machine is to be ready for
    #[arg(value_enum, default_value_t = Purpose::Test)]
    purpose: Purpose,
}

/// What a machine can be made ready for. Each includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Purpose {
    /// Build an image and run sandboxes.
    Demo,
    /// Run every test.
    Test,
    /// Compare with other ways to run a program.
    Bench,
}

/// A program and the package that brings it.
#[derive(Debug)]
struct Need {
    program: &'static str,
    package: &'static str,
    purpose: Purpose,
}

const fn need(program: &'static str, package: &'static str, purpose: Purpose) -> Need {
    Need { program, package, purpose }
}

const NEEDS: [Need; 13] = [
    need("git", "git", Purpose::Demo),
    need("cc", "build-essential", Purpose::Demo),
    need("make", "build-essential", Purpose::Demo),
    need("qemu-system-x86_64", "qemu-system-x86", Purpose::Demo),
    need("mmdebstrap", "mmdebstrap", Purpose::Demo),
    need("mkfs.erofs", "erofs-utils", Purpose::Demo),
    need("xz", "xz-utils", Purpose::Demo),
    need("dpkg-deb", "dpkg", Purpose::Demo),
    need("curl", "curl", Purpose::Demo),
    need("initdb", "postgresql", Purpose::Test),
    need("dockerd", "docker.io", Purpose::Bench),
    need("runsc", "runsc", Purpose::Bench),
    need("bwrap", "bubblewrap", Purpose::Bench),
];

/// Runs `cargo xtask setup`.
pub(crate) fn run(arguments: &SetupArgs) -> anyhow::Result<()> {
    let mut progress = Progress::new("setup", &["install what is missing"]);
    progress.step(|| install(arguments.purpose))
}

/// Installs the packages whose programs are missing.
pub(crate) fn install(purpose: Purpose) -> anyhow::Result<()> {
    let packages = missing(purpose, is_there);
    if packages.is_empty() {
        println!("    nothing is missing");
        return Ok(());
    }
    let by_hand = format!("apt-get install {}", packages.join(" "));
    ensure!(
        workspace::is_installed("apt-get"),
        "this machine has no apt-get. Install by hand what these Debian packages hold, and start \
         again: {}",
        packages.join(" ")
    );
    println!("    {by_hand}");
    apt(&["update"], &[]).context(advice(&by_hand))?;
    apt(&["install", "--yes", "--no-install-recommends"], &packages).context(advice(&by_hand))?;
    let still = missing(purpose, is_there);
    if !still.is_empty() {
        bail!(
            "{} installed, and a program is still missing; {}",
            still.join(" "),
            advice(&by_hand)
        );
    }
    Ok(())
}

fn advice(by_hand: &str) -> String {
    format!("run `{by_hand}` by hand as root, see what it says, and start again")
}

/// The packages whose programs `is_there` does not find.
fn missing(purpose: Purpose, is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let needs = NEEDS.iter().filter(|need| need.purpose <= purpose);
    let packages: BTreeSet<_> =
        needs.filter(|need| !is_there(need.program)).map(|need| need.package).collect();
    packages.into_iter().collect()
}

fn is_there(program: &str) -> bool {
    if program == "initdb" { has_postgres() } else { workspace::is_installed(program) }
}

/// Debian keeps the programs of each version of Postgres in a folder of its own.
fn has_postgres() -> bool {
    let Ok(versions) = fs::read_dir(Path::new("/usr/lib/postgresql")) else { return false };
    versions.flatten().any(|version| version.path().join("bin/initdb").is_file())
}

fn apt(arguments: &[&str], packages: &[&str]) -> anyhow::Result<()> {
    // Installing postgresql would otherwise start a server that nobody asked for
    // and that outlives us.
    let mut apt: Command = privilege::command("env")?;
    apt.args(["DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-qq"]);
    let status = apt.args(arguments).args(packages).status()?;
    ensure!(status.success(), "apt-get {} ended with {status}", arguments[0]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed_and_once() {
        assert_eq!(missing(Purpose::Demo, |_| true), [""; 0]);
        let found = missing(Purpose::Demo, |program| !matches!(program, "cc" | "make" | "initdb"));
        assert_eq!(found, ["build-essential"]);
        assert_eq!(missing(Purpose::Test, |program| program != "initdb"), ["postgresql"]);
    }
}
