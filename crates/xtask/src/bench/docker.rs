//! A Docker daemon of our own: its data, socket and process beside nobody else's.
//!
//! It makes no bridge and touches no firewall rule, because all that is compared
//! has no network. A daemon that already runs on the machine is not used: it may
//! be configured in any way, and its images are not ours to add to.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::peers::{self, PROGRAM, Timing};
use crate::workspace;

/// How long the daemon may take to become ready or to end.
const PATIENCE: Duration = Duration::from_secs(60);

const IMAGE: &str = "coldframe-bench";

/// The daemon and a container that stays.
#[derive(Debug)]
pub(super) struct Docker {
    daemon: Child,
    socket: PathBuf,
    container: String,
}

impl Docker {
    /// Starts the daemon and gives it the folder `root` as an image.
    pub(super) fn start(cache: &Path, root: &Path) -> anyhow::Result<Self> {
        let dockerd = workspace::find_program("dockerd").context("dockerd is not installed")?;
        let folder = cache.join("docker");
        fs::create_dir_all(&folder)?;
        let socket = folder.join("socket");
        let log = fs::File::create(folder.join("log"))?;
        let mut daemon = Command::new(dockerd);
        daemon.arg("--data-root").arg(folder.join("data"));
        daemon.arg("--exec-root").arg(folder.join("exec"));
        daemon.arg("--pidfile").arg(folder.join("pid"));
        daemon.arg("--host").arg(format!("unix://{}", socket.display()));
        daemon.args(["--bridge=none", "--iptables=false", "--ip6tables=false"]);
        daemon.args(["--ip-forward=false", "--ip-masq=false"]);
        daemon.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut docker = Self { daemon: daemon.spawn()?, socket, container: String::new() };
        let prepared = docker.prepare(root, &folder.join("log"));
        if let Err(error) = prepared {
            docker.end()?;
            return Err(error);
        }
        Ok(docker)
    }

    fn prepare(&mut self, root: &Path, log: &Path) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.command().arg("info").output()?.status.success() {
            if let Some(status) = self.daemon.try_wait()? {
                bail!("dockerd ended with {status}; {} says why", log.display());
            }
            ensure!(began.elapsed() < PATIENCE, "dockerd is not ready; see {}", log.display());
            thread::sleep(Duration::from_millis(100));
        }
        // Imported each time: the folder may hold another image than last time.
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()?;
        let content = tar.stdout.take().context("standard output is a pipe")?;
        let imported = self.command().args(["import", "-", IMAGE]).stdin(content).output()?;
        ensure!(tar.wait()?.success(), "tar failed");
        ensure!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        let mut run = self.command();
        run.args(["run", "--detach", "--rm", "--network", "none", IMAGE, "sleep", "infinity"]);
        let output = run.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.container = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(())
    }

    /// A new container, removed at its end.
    pub(super) fn time_run(&self) -> anyhow::Result<Timing> {
        let mut run = self.command();
        peers::time(run.args(["run", "--rm", "--network", "none", IMAGE]).args(PROGRAM))
    }

    /// A program in the container that stays.
    pub(super) fn time_exec(&self) -> anyhow::Result<Timing> {
        peers::time(self.command().arg("exec").arg(&self.container).args(PROGRAM))
    }

    pub(super) fn version(&self) -> String {
        let mut version = self.command();
        version.args(["version", "--format", "{{.Server.Version}} (client {{.Client.Version}})"]);
        let output = version.output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).trim().to_owned()
    }

    /// Ends the container and the daemon.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        if !self.container.is_empty() {
            self.command().args(["kill", &self.container]).output()?;
        }
        let process = Pid::from_raw(self.daemon.id().cast_signed()).context("it has an id")?;
        // It may have ended by itself, which is what we want.
        kill_process(process, Signal::TERM).ok();
        let began = Instant::now();
        while self.daemon.try_wait()?.is_none() {
            ensure!(began.elapsed() < PATIENCE, "dockerd does not end");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.env("DOCKER_HOST", format!("unix://{}", self.socket.display()));
        docker.env_remove("DOCKER_CONTEXT").stdin(Stdio::null());
        docker
    }
}
