//! A Postgres server for one test run: made in a temporary folder, reached over
//! a Unix socket there, ended by its process id.
//!
//! Postgres refuses to run as root, so root starts it as `postgres`, or as
//! `nobody` where there is no such account. Where the programs are missing,
//! [`Postgres::start`] says so in one line that begins with `not run:`, and the
//! caller leaves its Postgres half out.

use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

/// Where distributions put the server's programs; the newest is taken.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// A running server. Dropping it ends the server and removes its data.
#[derive(Debug)]
pub struct Postgres {
    folder: tempfile::TempDir,
    programs: PathBuf,
    account: Option<Account>,
    databases: AtomicU32,
}

#[derive(Clone, Debug)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Postgres {
    /// Starts a server, or says why there is none.
    ///
    /// # Panics
    /// When the programs are there and do not work.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            say(&format!(
                "not run: Postgres is missing ({PROGRAMS}/*/bin/initdb); install it to test on it"
            ));
            return None;
        };
        let folder = tempfile::Builder::new().prefix("pg").tempdir().expect("a temporary folder");
        // Root may not run the server; others run it as themselves.
        let account = (fs::metadata(folder.path()).expect("its metadata").uid() == 0).then(account);
        if let Some(account) = &account {
            chown(folder.path(), Some(account.uid), Some(account.gid)).expect("chown as root");
        }
        let server = Self { folder, programs, account, databases: AtomicU32::new(0) };
        let data = server.data();
        server.run(
            "initdb",
            &[
                "--pgdata".as_ref(),
                data.as_os_str(),
                "--username=coldframe".as_ref(),
                "--auth=trust".as_ref(),
                "--no-sync".as_ref(),
                "--encoding=UTF8".as_ref(),
            ],
        );
        let socket = server.folder.path().to_str().expect("a printable path");
        let options =
            format!("-c listen_addresses='' -c unix_socket_directories={socket} -c fsync=off");
        let log = server.folder.path().join("log");
        server.run(
            "pg_ctl",
            &[
                "--pgdata".as_ref(),
                data.as_os_str(),
                "--log".as_ref(),
                log.as_os_str(),
                "--wait".as_ref(),
                "--options".as_ref(),
                options.as_ref(),
                "start".as_ref(),
            ],
        );
        Some(server)
    }

    /// Makes an empty database and returns its URL.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let host = self.folder.path().to_str().expect("a printable path");
        self.run(
            "createdb",
            &["--host".as_ref(), host.as_ref(), "--username=coldframe".as_ref(), name.as_ref()],
        );
        format!("postgres://coldframe@localhost/{name}?host={host}")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run(&self, program: &str, arguments: &[&OsStr]) {
        let output = self.output(program, arguments);
        assert!(
            output.status.success(),
            "{program} failed: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
    }

    fn output(&self, program: &str, arguments: &[&OsStr]) -> Output {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).current_dir(self.folder.path()).env_clear().env("LC_ALL", "C");
        if let Some(account) = &self.account {
            command.gid(account.gid).uid(account.uid);
        }
        command.output().unwrap_or_else(|error| panic!("{program} could not be run: {error}"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // `pg_ctl` reads the process id that the server wrote, and waits.
        let data = self.data();
        let stopped = self.output(
            "pg_ctl",
            &[
                "--pgdata".as_ref(),
                data.as_os_str(),
                "--mode=immediate".as_ref(),
                "--wait".as_ref(),
                "stop".as_ref(),
            ],
        );
        if !stopped.status.success() {
            say(&format!("Postgres did not stop: {}", String::from_utf8_lossy(&stopped.stderr)));
        }
    }
}

/// Writes past the test runner, which keeps what a passing test prints to itself.
fn say(text: &str) {
    // Nobody to tell if this fails.
    drop(writeln!(std::io::stderr(), "{text}"));
}

fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(PROGRAMS).ok()?;
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|programs| programs.join("initdb").exists())
        .collect();
    found.sort_by_key(|path| version(path));
    found.pop()
}

fn version(programs: &Path) -> u32 {
    let version = programs.parent().and_then(Path::file_name).and_then(OsStr::to_str);
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn account() -> Account {
    let accounts = fs::read_to_string("/etc/passwd").expect("the list of accounts");
    for name in ["postgres", "nobody"] {
        let fields = accounts
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.first() == Some(&name));
        if let Some(fields) = fields
            && let (Some(Ok(uid)), Some(Ok(gid))) =
                (fields.get(2).map(|uid| uid.parse()), fields.get(3).map(|gid| gid.parse()))
        {
            return Account { uid, gid };
        }
    }
    panic!("neither postgres nor nobody is an account of this machine");
}
