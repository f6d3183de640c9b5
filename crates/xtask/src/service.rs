//! A server for the demo or for measuring: started in the background, found
//! again, ended.
//!
//! What tells a later run about it is one file with its process id and when that
//! process began. An id alone could by then be somebody else's.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use crate::privilege;

/// Where the server listens if that is free.
const PREFERRED: &str = "127.0.0.1:7070";

/// How long a server may take to become ready or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lines of the server's log that an error repeats.
const LOG_LINES: usize = 20;

/// Which program runs on which files.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) program: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) images: PathBuf,
    /// Further lines of the configuration.
    pub(crate) settings: &'static str,
}

impl Place {
    pub(crate) fn log(&self) -> PathBuf {
        self.state.join("server.log")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.state.join("coldframe.toml")
    }

    /// The `coldframe` program with the configuration of this place.
    pub(crate) fn command(&self) -> anyhow::Result<Command> {
        let mut command = privilege::command(&self.program)?;
        command.arg("--config").arg(self.config());
        Ok(command)
    }
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) process: u32,
    pub(crate) url: String,
    state: PathBuf,
}

impl Service {
    /// Ends the server of an earlier run in the same place and starts another.
    pub(crate) fn start(place: &Place) -> anyhow::Result<Self> {
        fs::create_dir_all(&place.state)?;
        stop(&place.state)?;
        let listen = free_address()?;
        let settings = format!(
            "state_dir = {:?}\nimages = {:?}\nlisten = {listen:?}\nurl = \"http://{listen}\"\nlog_format = \"json\"\n{}",
            place.state, place.images, place.settings
        );
        fs::write(place.config(), settings)?;
        let log = fs::File::create(place.log())?;
        let mut serve = place.command()?;
        serve.arg("serve");
        // A session of its own, so that Ctrl-C in this terminal does not reach it.
        let mut detached = Command::new("setsid");
        detached.arg(serve.get_program()).args(serve.get_args());
        detached.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = detached.spawn().context("setsid could not be started")?;
        let service = Self {
            process: child.id(),
            url: format!("http://{listen}"),
            state: place.state.clone(),
        };
        service.remember()?;
        let began = Instant::now();
        while !is_ready(&listen) {
            let log = || tail(&place.log());
            if let Some(status) = child.try_wait()? {
                bail!("the server ended with {status}; it said:\n{}", log());
            }
            if began.elapsed() > PATIENCE {
                stop(&place.state)?;
                bail!("the server was not ready in time; it said:\n{}", log());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(service)
    }

    fn remember(&self) -> anyhow::Result<()> {
        let born = born(self.process).context("the server ended at once")?;
        fs::write(record(&self.state), format!("{} {born}\n", self.process))?;
        Ok(())
    }

    /// The text of the token for sandboxes.
    pub(crate) fn token(&self) -> anyhow::Result<String> {
        let output = privilege::command("cat")?.arg(self.state.join("token")).output()?;
        ensure!(output.status.success(), "the server left no token");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

/// Whether the server that an earlier run left in `state` still runs.
pub(crate) fn is_running(state: &Path) -> bool {
    recorded(state).is_some_and(|(process, began)| born(process) == Some(began))
}

/// Ends the server that an earlier run left in `state`, if it still runs.
pub(crate) fn stop(state: &Path) -> anyhow::Result<()> {
    let Some((process, _)) = recorded(state) else { return Ok(()) };
    if is_running(state) {
        println!("    ending the server (process {process})");
        let mut kill = privilege::command("kill")?;
        ensure!(kill.arg(process.to_string()).status()?.success(), "it could not be ended");
        let began = Instant::now();
        while is_running(state) {
            ensure!(began.elapsed() < PATIENCE, "process {process} does not end");
            thread::sleep(Duration::from_millis(50));
        }
    }
    fs::remove_file(record(state))?;
    Ok(())
}

/// The process that was remembered, and when it began.
fn recorded(state: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(record(state)).ok()?;
    let (process, began) = text.trim().split_once(' ')?;
    Some((process.parse().ok()?, began.parse().ok()?))
}

fn record(state: &Path) -> PathBuf {
    state.join("server.pid")
}

/// When a process began, in ticks since the machine did. A process that has
/// ended and waits for its parent counts as gone.
fn born(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold spaces.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if *fields.first()? == "Z" {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// The preferred address, or one that is free now.
fn free_address() -> anyhow::Result<String> {
    let listener = TcpListener::bind(PREFERRED).or_else(|_| TcpListener::bind("127.0.0.1:0"))?;
    Ok(listener.local_addr()?.to_string())
}

fn is_ready(listen: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(listen)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
