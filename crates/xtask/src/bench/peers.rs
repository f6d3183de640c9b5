//! Other ways to run a program on the same root file system, and how any command
//! is timed.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

/// When a command gave its first byte and when it was over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) first: Duration,
    pub(super) exit: Duration,
}

/// What every way runs, and what it must print.
pub(super) const PROGRAM: [&str; 2] = ["/bin/echo", "ready"];
const OUTPUT: &str = "ready\n";

/// `runsc` and `bwrap` on a folder.
#[derive(Debug)]
pub(super) struct Peers {
    root: PathBuf,
    state: PathBuf,
    /// The flags with which `runsc` works here.
    pub(super) runsc: Option<Vec<&'static str>>,
}

impl Peers {
    /// Finds out how `runsc` works on this machine, by running it.
    pub(super) fn new(root: &Path, cache: &Path) -> Self {
        let mut peers = Self { root: root.to_owned(), state: cache.join("runsc"), runsc: None };
        let ways = [vec!["--network=none"], vec!["--network=none", "--platform=ptrace"]];
        peers.runsc = ways.into_iter().find(|flags| time(&mut peers.runsc_command(flags)).is_ok());
        peers
    }

    pub(super) fn time_runsc(&self) -> anyhow::Result<Timing> {
        let flags = self.runsc.as_ref().context("runsc does not work here")?;
        time(&mut self.runsc_command(flags))
    }

    pub(super) fn time_bwrap(&self) -> anyhow::Result<Timing> {
        let mut bwrap = Command::new("bwrap");
        bwrap
            .arg("--ro-bind")
            .arg(&self.root)
            .arg("/")
            .args(["--unshare-all", "--die-with-parent"]);
        bwrap.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]).args(PROGRAM);
        time(&mut bwrap)
    }

    fn runsc_command(&self, flags: &[&str]) -> Command {
        let mut runsc = Command::new("runsc");
        runsc.arg("--root").arg(&self.state).args(flags).arg("do").arg("--root").arg(&self.root);
        runsc.args(PROGRAM);
        runsc
    }
}

/// Runs a command that prints what [`PROGRAM`] prints.
pub(super) fn time(command: &mut Command) -> anyhow::Result<Timing> {
    time_output(command, OUTPUT)
}

/// Runs a command that prints `expected`.
pub(super) fn time_output(command: &mut Command, expected: &str) -> anyhow::Result<Timing> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().to_string_lossy().into_owned();
    let began = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{name} could not be started"))?;
    let mut output = child.stdout.take().context("standard output is a pipe")?;
    let mut said = vec![0; 1];
    let read = output.read(&mut said)?;
    let first = began.elapsed();
    said.truncate(read);
    output.read_to_end(&mut said)?;
    let ended = child.wait_with_output()?;
    let exit = began.elapsed();
    ensure!(
        ended.status.success() && said == expected.as_bytes(),
        "{name} ended with {} and said {:?}: {}",
        ended.status,
        String::from_utf8_lossy(&said),
        String::from_utf8_lossy(&ended.stderr)
    );
    Ok(Timing { first, exit })
}
