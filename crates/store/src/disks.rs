//! The live data of volumes: one sparse file for each, with a file system in it.
//!
//! The host makes the file system and never mounts or repairs one: what is in a
//! file afterwards is a sandbox's, and a host that parsed it would be attacked
//! through it. The guest's kernel replays the journal.
//!
//! What must hold: whoever uses a file holds its lock, machines included, so
//! that a wrong row cannot give one disk to two of them. A file appears whole,
//! by a rename, and only its owner may open it.
//!
//! Every function blocks; callers give it a thread of its own.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use domain::{id::VolumeId, volume::VolumeSize};
use rustix::fs::{SeekFrom, ioctl_ficlone, seek};

/// The ending of a file that is not whole yet.
const NEW: &str = "new";
/// The ending of a copy that a checkpoint is made from.
const COPY: &str = "copy";
/// How much is copied at once.
const BLOCK: usize = 1024 * 1024;

/// The folder of volumes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Disks {
    folder: PathBuf,
}

/// Why a volume's file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A machine has it, or somebody copies it.
    #[error("the volume is in use")]
    InUse,
    /// It took longer than it may.
    #[error("the volume could not be copied in time")]
    TooLate,
    /// The file system could not be made.
    #[error("mkfs.ext4 failed: {0}")]
    Mkfs(String),
    /// The disk of this host failed, or is full.
    #[error("the folder of volumes cannot be used")]
    Io(#[from] io::Error),
}

/// A file that nobody else uses.
#[derive(Debug)]
pub struct Locked(File);

impl Locked {
    /// The file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Disks {
    /// Opens the folder, making it if it is missing. Nobody else may enter it.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { folder })
    }

    /// Where a volume's file is.
    pub fn path(&self, id: &VolumeId) -> PathBuf {
        self.folder.join(id.as_str())
    }

    /// Makes a volume with an empty file system. One that is there is kept.
    pub fn create(&self, id: &VolumeId, size: VolumeSize) -> Result<(), DiskError> {
        if self.path(id).exists() {
            return Ok(());
        }
        let (file, path) = self.begin(id, NEW)?;
        file.set_len(size.bytes())?;
        // The top folder is the ordinary user's; nothing is reserved for root.
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-m", "0", "-E"])
            .arg("lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=1000:1000")
            .arg(&path)
            .env_clear()
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut mkfs = mkfs.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                DiskError::Mkfs("the program is missing; install e2fsprogs".to_owned())
            }
            _ => DiskError::Io(error),
        })?;
        let mut said = String::new();
        if let Some(output) = mkfs.stderr.take() {
            output.take(4096).read_to_string(&mut said)?;
        }
        if !mkfs.wait()?.success() {
            return Err(DiskError::Mkfs(said.trim().to_owned()));
        }
        self.finish(id, &file)
    }

    /// Begins a volume whose content comes from elsewhere.
    pub fn begin_restore(&self, id: &VolumeId, size: VolumeSize) -> Result<File, DiskError> {
        let (file, _) = self.begin(id, NEW)?;
        file.set_len(size.bytes())?;
        Ok(file)
    }

    /// Makes what was begun the volume.
    pub fn finish(&self, id: &VolumeId, file: &File) -> Result<(), DiskError> {
        file.sync_all()?;
        fs::rename(self.beside(id, NEW), self.path(id))?;
        File::open(&self.folder)?.sync_all()?;
        Ok(())
    }

    /// Takes the file for oneself, as a machine does.
    pub fn lock(&self, id: &VolumeId) -> Result<Locked, DiskError> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(id))?;
        match file.try_lock() {
            Ok(()) => Ok(Locked(file)),
            Err(fs::TryLockError::WouldBlock) => Err(DiskError::InUse),
            Err(fs::TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Copies a volume that is held still: shares its blocks where the host's
    /// file system can, else copies what is used. The copy has no name that
    /// outlives it.
    pub fn copy(&self, id: &VolumeId, deadline: Instant) -> Result<File, DiskError> {
        let source = File::open(self.path(id))?;
        let (copy, path) = self.begin(id, COPY)?;
        fs::remove_file(&path)?;
        if ioctl_ficlone(&copy, &source).is_err() {
            copy.set_len(source.metadata()?.len())?;
            copy_used(&source, &copy, deadline)?;
        }
        Ok(copy)
    }

    /// How much of the host's disk a volume takes.
    pub fn used_bytes(&self, id: &VolumeId) -> io::Result<u64> {
        Ok(fs::metadata(self.path(id))?.blocks() * 512)
    }

    /// How much of the host's disk is free, and how much of that volumes may
    /// still grow into.
    pub fn room(&self) -> io::Result<Room> {
        let disk = rustix::fs::statvfs(&self.folder)?;
        let mut promised = 0;
        for entry in fs::read_dir(&self.folder)? {
            // A file may go meanwhile.
            let Ok(file) = entry?.metadata() else { continue };
            promised += file.len().saturating_sub(file.blocks() * 512);
        }
        Ok(Room { free: disk.f_bavail * disk.f_frsize, promised })
    }

    /// Removes a volume's file and whatever was begun of it. An absent one is no
    /// error.
    pub fn remove(&self, id: &VolumeId) -> Result<(), DiskError> {
        if self.path(id).exists() {
            // A machine that still has it keeps it.
            self.lock(id)?;
        }
        for path in [self.path(id), self.beside(id, NEW), self.beside(id, COPY)] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        File::open(&self.folder)?.sync_all()?;
        Ok(())
    }

    /// Every volume that has a file, whole or not.
    pub fn list(&self) -> io::Result<Vec<VolumeId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = PathBuf::from(entry?.file_name());
            let stem = name.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if let Ok(id) = stem.parse() {
                found.push(id);
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn beside(&self, id: &VolumeId, ending: &str) -> PathBuf {
        self.folder.join(id.as_str()).with_extension(ending)
    }

    fn begin(&self, id: &VolumeId, ending: &str) -> io::Result<(File, PathBuf)> {
        let path = self.beside(id, ending);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        Ok((options.open(&path)?, path))
    }
}

/// What the host's disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free bytes.
    pub free: u64,
    /// Bytes that volumes were promised and do not use yet.
    pub promised: u64,
}

impl Room {
    /// Whether a volume of this size can be promised, with `reserve` left.
    pub fn has(&self, size: VolumeSize, reserve: u64) -> bool {
        self.promised.saturating_add(size.bytes()).saturating_add(reserve) <= self.free
    }
}

/// The ranges of a file that hold anything, as multiples of `grain`, in order.
pub(crate) fn used_ranges(file: &File, grain: u64) -> io::Result<Vec<(u64, u64)>> {
    let end = file.metadata()?.len();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = seek(file, SeekFrom::Hole(data))?;
        let (first, last) = (data / grain * grain, (hole.div_ceil(grain) * grain).min(end));
        match ranges.last_mut() {
            Some((_, before)) if *before >= first => *before = last,
            _ => ranges.push((first, last)),
        }
        at = hole;
    }
    Ok(ranges)
}

fn copy_used(source: &File, copy: &File, deadline: Instant) -> Result<(), DiskError> {
    let mut block = vec![0; BLOCK];
    for (begin, end) in used_ranges(source, 4096)? {
        let mut at = begin;
        while at < end {
            if Instant::now() > deadline {
                return Err(DiskError::TooLate);
            }
            let part = usize::try_from(end - at).map_or(BLOCK, |left| left.min(BLOCK));
            source.read_exact_at(&mut block[..part], at)?;
            copy.write_all_at(&block[..part], at)?;
            at += part as u64;
        }
    }
    Ok(())
}

/// Whether the program that makes file systems is there.
pub fn mkfs_is_here() -> bool {
    ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn disks() -> (tempfile::TempDir, Disks) {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks::open(folder.path().join("volumes")).unwrap();
        (folder, disks)
    }

    fn id(byte: u8) -> VolumeId {
        VolumeId::from_random([byte; 16])
    }

    /// S38: an empty volume takes little, is private, and is there whole.
    #[test]
    fn a_volume_is_a_sparse_file_with_a_file_system() {
        let (_folder, disks) = disks();
        let size = VolumeSize::mib(64).unwrap();
        disks.create(&id(1), size).unwrap();
        disks.create(&id(1), size).unwrap();
        let file = fs::metadata(disks.path(&id(1))).unwrap();
        assert_eq!((file.len(), file.mode() & 0o777), (size.bytes(), 0o600));
        assert!(disks.used_bytes(&id(1)).unwrap() < size.bytes() / 4);
        let mut magic = [0; 2];
        File::open(disks.path(&id(1))).unwrap().read_exact_at(&mut magic, 1024 + 56).unwrap();
        assert_eq!(magic, [0x53, 0xef]);
        assert_eq!(disks.list().unwrap(), [id(1)]);
    }

    /// U37: one user at a time, whoever it is; a file in use is not removed.
    #[test]
    fn a_file_has_one_user() {
        let (_folder, disks) = disks();
        disks.create(&id(1), VolumeSize::mib(16).unwrap()).unwrap();
        let locked = disks.lock(&id(1)).unwrap();
        assert!(matches!(disks.lock(&id(1)), Err(DiskError::InUse)));
        assert!(matches!(disks.remove(&id(1)), Err(DiskError::InUse)));
        drop(locked);
        disks.remove(&id(1)).unwrap();
        disks.remove(&id(1)).unwrap();
        assert!(disks.list().unwrap().is_empty());
    }

    #[test]
    fn a_copy_holds_what_was_used_and_leaves_no_name() {
        let (_folder, disks) = disks();
        let file = disks.begin_restore(&id(2), VolumeSize::mib(16).unwrap()).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"middle", 5_000_001).unwrap();
        disks.finish(&id(2), &file).unwrap();
        let copy = disks.copy(&id(2), Instant::now() + Duration::from_secs(60)).unwrap();
        let mut both = [vec![0; 16 << 20], vec![0; 16 << 20]];
        for (file, bytes) in [&file, &copy].into_iter().zip(&mut both) {
            file.read_exact_at(bytes, 0).unwrap();
        }
        assert!(both[0] == both[1]);
        assert_eq!(fs::read_dir(&disks.folder).unwrap().count(), 1);
        assert!(matches!(
            copy_used(&file, &copy, Instant::now() - Duration::from_secs(1)),
            Err(DiskError::TooLate)
        ));
    }

    #[test]
    fn ranges_are_whole_grains_in_order() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10_000_000).unwrap();
        assert!(used_ranges(&file, 4096).unwrap().is_empty());
        for at in [0, 1_000_000, 1_048_576, 9_999_999] {
            file.write_all_at(b"x", at).unwrap();
        }
        let ranges = used_ranges(&file, 1 << 20).unwrap();
        assert_eq!(ranges, [(0, 2 << 20), (9 << 20, 10_000_000)]);
    }

    #[test]
    fn what_was_promised_counts() {
        let size = VolumeSize::mib(1024).unwrap();
        let room = Room { free: 3 << 30, promised: 1 << 30 };
        assert!(room.has(size, 1 << 30));
        assert!(!room.has(size, (1 << 30) + 1));
    }
}
