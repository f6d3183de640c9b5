//! Remembering that a file was found good, so that a start does not hash it again.
//!
//! A stamp says that the file with this inode, size, and times had the content
//! that the manifest with this digest wants. Every way of changing a file's
//! content changes its time of last status change, which no call can set back.
//!
//! A file changed within the last moments is not stamped: its times are no finer
//! than the kernel's clock tick, and a second change in the same tick would go
//! unseen.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use domain::image::{ImageName, digest::Digest};
use serde::{Deserialize, Serialize};

/// A file whose status changed less than this ago is not stamped.
const SETTLED: Duration = Duration::from_secs(2);
/// More than any stamp has.
const MAX_STAMP_BYTES: u64 = 16 << 10;

/// The identity of a file's content, as far as the file system tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What was found good: a manifest, and the identity of each of its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    pub(super) manifest: Digest,
    pub(super) files: BTreeMap<String, Identity>,
}

/// The stamps of a folder of images, in memory and beside the images.
#[derive(Debug)]
pub(super) struct Stamps {
    folder: PathBuf,
    known: Mutex<BTreeMap<ImageName, Stamp>>,
}

impl Identity {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or(u64::MAX));
        let changed = SystemTime::UNIX_EPOCH.checked_add(changed);
        let age = changed.and_then(|changed| now.duration_since(changed).ok());
        age.is_some_and(|age| age > SETTLED)
    }
}

impl Stamps {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, known: Mutex::default() }
    }

    /// Whether `stamp` is what was found good before.
    pub(super) fn vouch_for(&self, name: &ImageName, stamp: &Stamp) -> bool {
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.get(name) == Some(stamp) {
            return true;
        }
        let vouched = self.read(name).as_ref() == Some(stamp);
        if vouched {
            known.insert(name.clone(), stamp.clone());
        }
        vouched
    }

    /// Remembers that `stamp` was found good, unless a file changed just now.
    pub(super) fn remember(&self, name: &ImageName, stamp: Stamp, now: SystemTime) {
        if !stamp.files.values().all(|file| file.is_settled(now)) {
            return;
        }
        // A stamp that cannot be written costs a second of hashing at the next
        // start and nothing else.
        drop(self.write(name, &stamp));
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.insert(name.clone(), stamp);
    }

    /// Forgets that the image called `name` was found good.
    pub(super) fn forget(&self, name: &ImageName) {
        // The stamp in memory is a copy: without the one on disk and without the
        // copy, nothing vouches for a file. A stamp that stays on disk because it
        // cannot be removed is in a folder that is not ours to change, and then
        // it is not read either.
        fs::remove_file(self.path(name)).ok();
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(name);
    }

    fn path(&self, name: &ImageName) -> PathBuf {
        self.folder.join(format!(".{name}.stamp"))
    }

    /// The stamp on disk, if only we could have written it.
    fn read(&self, name: &ImageName) -> Option<Stamp> {
        let path = self.path(name);
        let metadata = path.symlink_metadata().ok()?;
        let ours = metadata.uid() == rustix::process::geteuid().as_raw();
        let trusted = metadata.is_file() && ours && metadata.mode() & 0o022 == 0;
        if !trusted || metadata.len() > MAX_STAMP_BYTES {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn write(&self, name: &ImageName, stamp: &Stamp) -> std::io::Result<()> {
        // Written beside and moved over, so that no reader sees half a stamp.
        let new = self.folder.join(format!(".{name}.stamp.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&new)?.write_all(&serde_json::to_vec(stamp)?)?;
        fs::rename(new, self.path(name))
    }
}
