//! Where the tests find what they need, and what they leave.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// More than anything that is waited for takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all tests share.
#[derive(Debug)]
pub(crate) struct Site {
    images: PathBuf,
    cache: PathBuf,
}

/// A state folder of one test, and users that no other test has.
#[derive(Debug)]
pub(crate) struct State {
    folder: TempDir,
    uid_base: u32,
    site: &'static Site,
}

/// A fresh state folder, or nothing where machines cannot run.
pub(crate) fn state() -> Option<State> {
    static SITE: OnceLock<Result<Site, String>> = OnceLock::new();
    match SITE.get_or_init(find) {
        Ok(site) => {
            let folder = tempfile::tempdir().expect("a folder");
            // The users tell the processes of one test from everybody else's.
            let n_test =
                std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), folder.path());
            let uid_base = 1_000_000_000 + u32::try_from(n_test % 10_000).expect("small") * 65_536;
            Some(State { folder, uid_base, site })
        }
        Err(missing) => {
            println!("not run: {missing}");
            None
        }
    }
}

fn find() -> Result<Site, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("machines need root".into());
    }
    let given = std::env::var_os("COLDFRAME_TEST_IMAGES").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let usual = [home.join(".local/share/coldframe/images"), "/var/lib/coldframe/images".into()];
    let mut places = given.into_iter().chain(usual);
    let images = places
        .find(|folder| folder.join("base/manifest.json").is_file())
        .ok_or("there is no image; build one with `cargo xtask image build`")?;
    let beside = Path::new(env!("CARGO_BIN_EXE_coldframe")).with_file_name("guestd");
    if option_env!("COLDFRAME_GUESTD").is_none() && !beside.is_file() {
        return Err("this build carries no guest; set COLDFRAME_GUESTD when building".into());
    }
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    fs::create_dir_all(&cache).map_err(|error| error.to_string())?;
    Ok(Site { images, cache })
}

impl State {
    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where images are.
    pub(crate) fn images(&self) -> &Path {
        &self.site.images
    }

    /// The program, with nothing of our environment.
    pub(crate) fn coldframe<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coldframe"));
        command.args(arguments).env_clear().stdin(Stdio::null());
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("COLDFRAME_STATE_DIR", self.path())
            .env("COLDFRAME_IMAGES", self.images())
            .env("COLDFRAME_CACHE_DIR", &self.site.cache)
            .env("COLDFRAME_UID_BASE", self.uid_base.to_string());
        command
    }

    /// `coldframe run` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Command {
        self.coldframe(["run"].iter().chain(arguments))
    }

    /// The processes that belong to machines of this test.
    pub(crate) fn machines(&self) -> BTreeSet<u32> {
        let ours = self.uid_base..self.uid_base + 65_536;
        processes()
            .filter(|(_, status)| {
                let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
                let uid = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
                uid.is_some_and(|uid: u32| ours.contains(&uid))
            })
            .map(|(pid, _)| pid)
            .collect()
    }

    /// The sandboxes that have a folder here.
    pub(crate) fn sandboxes(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        walk(self.path(), &mut |path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("sbx_") && path.is_dir() {
                found.insert(name.to_owned());
            }
        });
        found
    }

    /// Waits until nothing of the machines called `ids` is left on this host:
    /// no process, folder, group, mount or lock of a user.
    #[track_caller]
    pub(crate) fn nothing_is_left_of(&self, ids: &BTreeSet<String>) {
        let left = || {
            let mut left: Vec<String> = Vec::new();
            left.extend(self.machines().iter().map(|pid| format!("process {pid}")));
            left.extend(self.sandboxes().intersection(ids).map(|id| format!("folder {id}")));
            walk(Path::new("/sys/fs/cgroup"), &mut |path| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if ids.contains(name) {
                    left.push(format!("group {}", path.display()));
                }
            });
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
            let ours = self.path().to_str().expect("text");
            left.extend(mounts.lines().filter(|line| line.contains(ours)).map(str::to_owned));
            if let Ok(users) = fs::read_dir("/run/coldframe/uids") {
                for user in users.flatten() {
                    let name = user.file_name();
                    let uid = name.to_str().and_then(|name| name.parse::<u32>().ok());
                    if uid.is_some_and(|uid| (self.uid_base..self.uid_base + 65_536).contains(&uid))
                    {
                        left.push(format!("user {name:?}"));
                    }
                }
            }
            left
        };
        until("nothing is left", || {
            let left = left();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
        });
    }
}

/// Every process with its status.
fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, fs::read_to_string(entry.path().join("status")).ok()?))
    })
}

/// Looks at everything below `folder`, not following links.
pub(crate) fn walk(folder: &Path, look: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        look(&entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), look);
        }
    }
}

/// Tries until it works, or says why it did not.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{what}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A length: the second where `COLDFRAME_TEST_FULL` is set, which takes minutes
/// on translated machines.
pub(crate) fn full(usual: u64, full: u64) -> u64 {
    if std::env::var_os("COLDFRAME_TEST_FULL").is_some() { full } else { usual }
}

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Left {
    /// Standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }
}

/// Runs a program, with `input` as its standard input if there is any.
#[track_caller]
pub(crate) fn left_by(command: &mut Command, input: Option<&[u8]>) -> Left {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().expect("the program starts");
    let output = std::thread::scope(|scope| {
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
            scope.spawn(move || {
                use std::io::Write as _;
                // It may end without reading all of it.
                stdin.write_all(input).unwrap_or_default();
            });
        }
        child.wait_with_output().expect("it ends")
    });
    Left {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
