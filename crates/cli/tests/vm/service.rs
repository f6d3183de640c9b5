//! A real server of one test.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use crate::site::{Left, State, left_by, until};

/// A server, and the program as its client.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: State,
    child: Child,
    url: String,
    settings: Settings,
}

/// Settings of the environment that a server has beside the usual ones.
type Settings = &'static [(&'static str, &'static str)];

impl Service {
    /// Starts one, or nothing where machines cannot run.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same with settings.
    pub(crate) fn start_with(settings: Settings) -> Option<Self> {
        let state = crate::site::state()?;
        let (child, url) = serve(&state, settings);
        Some(Self { state, child, url, settings })
    }

    /// Where its log goes.
    pub(crate) fn log(&self) -> PathBuf {
        log(&self.state)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The token for sandboxes.
    pub(crate) fn token(&self) -> String {
        let text = fs::read_to_string(self.state.path().join("token")).expect("a token");
        text.trim().to_owned()
    }

    /// A client command. The token comes from the server's own file.
    pub(crate) fn client(&self, arguments: &[&str]) -> Command {
        let mut command = self.state.coldframe(arguments);
        command.env("COLDFRAME_URL", &self.url);
        command
    }

    /// Runs a client command that must succeed, and returns what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let left = left_by(&mut self.client(arguments), None);
        assert_eq!(left.code, Some(0), "{arguments:?}: {left:?}");
        left.text().trim_end().to_owned()
    }

    /// Creates a sandbox that lives long enough.
    #[track_caller]
    pub(crate) fn create(&self, arguments: &[&str]) -> String {
        let mut all = vec!["sandbox", "create", "--timeout", "1h"];
        all.extend_from_slice(arguments);
        self.ok(&all)
    }

    /// Runs a shell line in a sandbox.
    #[track_caller]
    pub(crate) fn shell(&self, sandbox: &str, line: &str) -> Left {
        left_by(&mut self.client(&["sandbox", "exec", sandbox, "--", "bash", "-c", line]), None)
    }

    /// The state of a sandbox, and why it ended if it did.
    #[track_caller]
    pub(crate) fn describe(&self, sandbox: &str) -> serde_json::Value {
        let text = self.ok(&["sandbox", "get", "--json", sandbox]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Sends a signal and returns the exit code, none for a killed one.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(sent.success());
        self.child.wait().expect("it ends").code()
    }

    /// Starts it again in the same place.
    pub(crate) fn again(&mut self) {
        (self.child, self.url) = serve(&self.state, self.settings);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // What is left ends with the sandboxes that the server still knows.
        let mut kill: Vec<String> = ["sandbox", "kill"].map(str::to_owned).to_vec();
        kill.extend(self.state.sandboxes());
        if kill.len() > 2 {
            let arguments: Vec<_> = kill.iter().map(String::as_str).collect();
            self.client(&arguments).output().ok();
        }
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let lines: Vec<_> = log.lines().filter(|line| !line.contains("DEBUG")).collect();
            println!("the server's log:\n{}", lines.join("\n"));
        }
        fs::remove_file(self.log()).ok();
    }
}

fn log(state: &State) -> PathBuf {
    state.path().with_extension("log")
}

#[track_caller]
fn serve(state: &State, settings: Settings) -> (Child, String) {
    let log = File::options().create(true).append(true).open(log(state)).expect("a log");
    let mut command = state.coldframe(["serve", "--listen", "127.0.0.1:0", "--log", "debug"]);
    command.envs(settings.iter().copied());
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the server starts");
    let stdout = child.stdout.take().expect("a pipe");
    let line = BufReader::new(stdout).lines().next().and_then(Result::ok).unwrap_or_default();
    let url = line.strip_prefix("Coldframe listens on ").map(str::to_owned);
    let Some(url) = url else {
        let log = fs::read_to_string(state.path().with_extension("log")).unwrap_or_default();
        panic!("the server said {line:?}; its log:\n{log}");
    };
    let ready = ["sandbox", "list"];
    until("the server is ready", || {
        let left = left_by(state.coldframe(ready).env("COLDFRAME_URL", &url), None);
        if left.code == Some(0) { Ok(()) } else { Err(left.stderr) }
    });
    (child, url)
}
