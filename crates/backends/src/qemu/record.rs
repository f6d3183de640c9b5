//! What is written down about each machine, so that it can be found again.
//!
//! A folder for each sandbox, made before anything else and removed after
//! everything else: what has a folder exists, perhaps in part, and what has none
//! does not. The record in it is replaced whole. It says how to recognise the
//! machine's first process; a number alone may belong to somebody else by now.

use std::{
    fs, io,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use domain::id::{SandboxId, SnapshotId};
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};

use super::snapshot::Bound;

/// The folder of one sandbox.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

/// What is known about a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Its user, once it has one.
    pub(super) uid: Option<u32>,
    /// Its first process, once there is one.
    pub(super) process: Option<Process>,
    /// Whether it is up, so that nothing but its end can follow.
    pub(super) complete: bool,
    /// What a snapshot of it is bound to.
    #[serde(default)]
    pub(super) bound: Option<Bound>,
    /// The snapshot that it was started from.
    #[serde(default)]
    pub(super) snapshot: Option<SnapshotId>,
}

/// A process that cannot be mistaken for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// When it started, in ticks since the host did.
    start: u64,
    /// Which start of the host that was.
    boot: String,
}

impl Folder {
    /// The folder of a sandbox below `run`, whether it exists or not.
    pub(super) fn of(run: &Path, id: &SandboxId) -> Self {
        Self { path: run.join(id.as_str()) }
    }

    /// A folder in a place of its own, for a machine that is no sandbox.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The sandboxes that have a folder.
    pub(super) fn list(run: &Path) -> io::Result<Vec<SandboxId>> {
        let entries = match fs::read_dir(run) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| SandboxId::from_str(name).ok()));
        }
        Ok(found)
    }

    /// Makes it, with an empty record: from now on the sandbox is listed.
    pub(super) fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        self.write(&Record::default())
    }

    /// Whether it exists.
    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// The record; the empty one if it is missing or unreadable, since then
    /// nothing is known beyond that something was begun.
    pub(super) fn read(&self) -> Record {
        let text = fs::read(self.path.join("machine.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Replaces the record.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let (new, file) = (self.path.join("machine.json.new"), self.path.join("machine.json"));
        fs::write(&new, serde_json::to_vec(record)?)?;
        fs::rename(new, file)
    }

    /// Removes it with all that is in it.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Socket of the machine protocol.
    pub(super) fn qmp(&self) -> PathBuf {
        self.path.join("qmp")
    }

    /// Socket of the link.
    pub(super) fn link(&self) -> PathBuf {
        self.path.join("link")
    }

    /// What QEMU complained about.
    pub(super) fn complaints(&self) -> PathBuf {
        self.path.join("stderr")
    }

    /// What was read of the console.
    pub(super) fn console(&self) -> PathBuf {
        self.path.join("console")
    }
}

impl Process {
    /// Describes a process that runs or was not waited for yet.
    pub(super) fn observe(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, start: start_time(pid)?, boot: boot_id()? })
    }

    /// A handle on it, if it still runs.
    pub(super) fn open(&self) -> Option<std::os::fd::OwnedFd> {
        let pid = Pid::from_raw(self.pid)?;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Checked after the handle was taken: now the number cannot change hands.
        (Self::observe(self.pid).ok()? == *self).then_some(handle)
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn start_time(pid: i32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&text).ok_or_else(|| io::Error::other("unreadable process status"))
}

/// The 22nd field. The second is a name in parentheses that may hold anything.
fn parse_start_time(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> SandboxId {
        SandboxId::from_random([byte; 16])
    }

    #[test]
    fn a_half_made_sandbox_is_listed() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(Folder::list(&run.path().join("absent")).unwrap(), []);
        let folder = Folder::of(run.path(), &id(1));
        folder.create().unwrap();
        fs::create_dir(run.path().join("something else")).unwrap();
        assert_eq!(Folder::list(run.path()).unwrap(), [id(1)]);
        assert_eq!(folder.read(), Record::default());
        folder.remove().unwrap();
        folder.remove().unwrap();
        assert_eq!(Folder::list(run.path()).unwrap(), []);
    }

    #[test]
    fn a_torn_record_reads_as_nothing_known() {
        let run = tempfile::tempdir().unwrap();
        let folder = Folder::of(run.path(), &id(1));
        folder.create().unwrap();
        fs::write(run.path().join(id(1).as_str()).join("machine.json"), "{\"uid\":").unwrap();
        assert_eq!(folder.read(), Record::default());
    }

    #[test]
    fn a_process_is_not_taken_for_another_with_its_number() {
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::observe(own).unwrap();
        assert!(process.open().is_some());
        assert!(Process { start: process.start + 1, ..process.clone() }.open().is_none());
        assert!(Process { boot: "another".into(), ..process }.open().is_none());
    }

    #[test]
    fn a_process_name_cannot_shift_the_fields() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse_start_time(text), Some(4242));
    }
}
