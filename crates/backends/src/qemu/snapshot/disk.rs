//! Snapshots on disk.
//!
//! A folder for each, with three files:
//!
//! | file | holds | sealed |
//! |---|---|---|
//! | `memory` | pieces of memory, in the order in which they were ready | yes |
//! | `index` | where each piece lies and belongs, and the device state | yes |
//! | `manifest.json` | what the snapshot is bound to, and how large it is | no, but the index opens beside no other |
//!
//! It is written under another name, flushed and renamed, so a snapshot is there
//! whole or not at all. What holds nothing but zeros is not kept. Pieces are
//! sealed and opened on several processors, because one cannot keep up with a
//! disk.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, FileExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use aws_lc_rs::error::Unspecified;
use domain::{id::SnapshotId, snapshot::SnapshotKey};
use sandbox::backend::{Captured, Sealed};
use serde::{Deserialize, Serialize};

use super::{
    bound::Bound,
    cipher::{AttemptSalt, Cipher, NotOpened, OVERHEAD, Part},
};
use crate::qemu::{
    memfd,
    memory::{Memory, PAGE, PIECE_PAGES, Piece, Run},
};

/// Changes whenever an older snapshot cannot be read any more.
const FORMAT: u32 = 1;
/// The most that is read of the files that are read whole.
const MAX_MANIFEST: u64 = 64 * 1024;
const MAX_INDEX: u64 = 256 * 1024 * 1024;
/// More workers than this do not write faster.
const MAX_WORKERS: usize = 4;

/// What anyone may read of a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    id: SnapshotId,
    pub(super) salt: AttemptSalt,
    pub(super) bound: Bound,
    /// Bytes of memory that are kept.
    pub(super) used_bytes: u64,
    /// Length of the file `memory`.
    sealed_bytes: u64,
}

/// What only the key's owner may read, beside the memory.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    pieces: Vec<Place>,
    devices: Vec<u8>,
}

/// A piece of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    /// Where it lies in the file.
    at: u64,
    /// Where it belongs.
    runs: Vec<Run>,
}

/// A snapshot whose memory is written and which is not there yet.
#[derive(Debug)]
pub(in crate::qemu) struct Draft {
    new: PathBuf,
    place: PathBuf,
    cipher: Cipher,
    manifest: Manifest,
    index: Index,
    file: File,
}

/// A snapshot whose memory is not filled yet.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) memory: Arc<OwnedFd>,
    pub(super) devices: Vec<u8>,
    pub(super) fill: Fill,
}

/// Opens the memory of a snapshot.
#[derive(Debug)]
pub(super) struct Fill {
    memory: Arc<OwnedFd>,
    file: File,
    cipher: Cipher,
    pieces: Vec<Place>,
}

/// Reads the manifest of a whole snapshot; none if there is no such.
pub(super) fn manifest(folder: &Path, id: &SnapshotId) -> io::Result<Option<(Manifest, Vec<u8>)>> {
    let place = folder.join(id.as_str());
    let mut text = Vec::new();
    match File::open(place.join("manifest.json")) {
        Ok(file) => file.take(MAX_MANIFEST).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(manifest) = serde_json::from_slice::<Manifest>(&text) else { return Ok(None) };
    let whole = manifest.format == FORMAT
        && manifest.id == *id
        && fs::metadata(place.join("memory")).is_ok_and(|file| file.len() == manifest.sealed_bytes)
        && place.join("index").exists();
    Ok(whole.then_some((manifest, text)))
}

/// What a whole snapshot takes.
pub(super) fn size(folder: &Path, manifest: &Manifest) -> io::Result<Captured> {
    let mut stored_bytes = 0;
    for entry in fs::read_dir(folder.join(manifest.id.as_str()))? {
        stored_bytes += entry?.metadata()?.len();
    }
    Ok(Captured { stored_bytes, memory_bytes: manifest.used_bytes })
}

/// Writes the memory of a machine that stands still.
pub(in crate::qemu) fn write(
    folder: &Path,
    to: &Sealed,
    bound: Bound,
    memory: &Memory,
    devices: Vec<u8>,
) -> io::Result<Draft> {
    // Not before: a process that captures nothing leaves no folder.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    let place = folder.join(to.id.as_str());
    let new = folder.join(format!("{}.new", to.id));
    remove(&new)?;
    fs::DirBuilder::new().mode(0o700).create(&new)?;
    let mut salt = AttemptSalt::default();
    aws_lc_rs::rand::fill(&mut salt).map_err(cipher_failed)?;
    let cipher = Cipher::new(&to.key, &salt, to.id.as_str()).map_err(cipher_failed)?;
    let file = File::options().write(true).create_new(true).open(new.join("memory"))?;

    let sources = memory.used()?;
    let end = AtomicU64::new(0);
    let pieces = in_parallel(&sources, |number, piece, buffer| {
        let runs = read_used(memory, piece, buffer)?;
        if runs.is_empty() {
            return Ok(None);
        }
        let part = Part::Memory(number as u64);
        cipher.seal(part, &[], buffer).map_err(cipher_failed)?;
        let at = end.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        file.write_all_at(buffer, at)?;
        Ok(Some((number, Place { at, runs })))
    })?;
    memory.still_there()?;
    let mut numbered: Vec<_> = pieces.into_iter().flatten().collect();
    numbered.sort_by_key(|(number, _)| *number);
    // A piece is known by its number; one of zeros leaves an empty place.
    let mut pieces = vec![Place { at: 0, runs: Vec::new() }; sources.len()];
    for (number, place) in numbered {
        pieces[number] = place;
    }
    let used_bytes = pieces.iter().map(|place| bytes_of(&place.runs) as u64).sum();
    let sealed_bytes = end.into_inner();
    let manifest =
        Manifest { format: FORMAT, id: to.id.clone(), salt, bound, used_bytes, sealed_bytes };
    Ok(Draft { new, place, cipher, manifest, index: Index { pieces, devices }, file })
}

impl Draft {
    /// Makes it a snapshot that survives a crash of the host.
    pub(in crate::qemu) fn finish(self) -> io::Result<Captured> {
        let manifest = serde_json::to_vec(&self.manifest)?;
        let mut index = postcard::to_stdvec(&self.index).map_err(io::Error::other)?;
        self.cipher.seal(Part::Index, &manifest, &mut index).map_err(cipher_failed)?;
        let files = [
            self.file,
            written(&self.new.join("index"), &index)?,
            written(&self.new.join("manifest.json"), &manifest)?,
        ];
        // At once, so that the disk orders them and the file system has one
        // journal entry to write.
        std::thread::scope(|scope| {
            let flushing = files.each_ref().map(|file| scope.spawn(|| file.sync_all()));
            flushing.into_iter().try_for_each(|one| {
                one.join().unwrap_or_else(|_| Err(io::Error::other("flushing was given up")))
            })
        })?;
        File::open(&self.new)?.sync_all()?;
        remove(&self.place)?;
        fs::rename(&self.new, &self.place)?;
        let folder = self.place.parent().unwrap_or(&self.place);
        File::open(folder)?.sync_all()?;
        size(folder, &self.manifest)
    }
}

/// Opens everything of a snapshot but its memory.
pub(super) fn open(
    folder: &Path,
    key: &SnapshotKey,
    manifest: &Manifest,
    manifest_text: &[u8],
) -> io::Result<Found> {
    let place = folder.join(manifest.id.as_str());
    let cipher = Cipher::new(key, &manifest.salt, manifest.id.as_str()).map_err(cipher_failed)?;
    let mut index = Vec::new();
    File::open(place.join("index"))?.take(MAX_INDEX).read_to_end(&mut index)?;
    let index = cipher.open(Part::Index, manifest_text, &mut index).map_err(damaged)?;
    let Index { pieces, devices } = postcard::from_bytes(index).map_err(|_| damaged(NotOpened))?;
    let memory = memfd::memory("coldframe-snapshot", manifest.bound.memory_bytes())?;
    let memory = Arc::new(memory);
    let file = File::open(place.join("memory"))?;
    Ok(Found { memory: Arc::clone(&memory), devices, fill: Fill { memory, file, cipher, pieces } })
}

impl Fill {
    /// Fills the memory and seals it. Nobody may use it before.
    pub(super) fn run(self) -> io::Result<()> {
        let Self { memory, file, cipher, pieces } = self;
        let bytes = memfd::length(memory.as_fd())?;
        in_parallel(&pieces, |number, place, buffer| {
            let length = bytes_of(&place.runs);
            if length == 0 {
                return Ok(());
            }
            buffer.resize(length + OVERHEAD, 0);
            file.read_exact_at(buffer, place.at).map_err(|_| damaged(NotOpened))?;
            let part = Part::Memory(number as u64);
            let mut rest = &*cipher.open(part, &[], buffer).map_err(damaged)?;
            for run in &place.runs {
                let (part, after) = rest.split_at(run.bytes());
                memfd::write_at(memory.as_fd(), part, run.offset())?;
                rest = after;
            }
            Ok(())
        })?;
        if memfd::length(memory.as_fd())? != bytes {
            return Err(damaged(NotOpened));
        }
        memfd::seal(memory.as_fd())
    }
}

/// The snapshots that exist, whole or not.
pub(super) fn list(folder: &Path) -> io::Result<Vec<SnapshotId>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let name = PathBuf::from(entry?.file_name());
        let stem = name.file_stem().and_then(|stem| stem.to_str());
        found.extend(stem.and_then(|stem| stem.parse::<SnapshotId>().ok()));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Removes a snapshot, whole or not.
pub(in crate::qemu) fn forget(folder: &Path, id: &SnapshotId) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let place = folder.join(id.as_str());
    let gone = folder.join(format!("{id}.gone"));
    remove(&gone)?;
    // From here on it is not whole any more, whatever happens.
    match fs::rename(&place, &gone) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    remove(&gone)?;
    remove(&folder.join(format!("{id}.new")))?;
    File::open(folder)?.sync_all()
}

/// Reads a piece into `buffer` without the pages that hold nothing, and says
/// which are left.
fn read_used(memory: &Memory, piece: &Piece, buffer: &mut Vec<u8>) -> io::Result<Vec<Run>> {
    buffer.resize(bytes_of(&piece.runs), 0);
    memory.read(piece, buffer)?;
    let mut kept: Vec<Run> = Vec::with_capacity(piece.runs.len());
    let (mut from, mut to) = (0, 0);
    for run in &piece.runs {
        for page in run.first..run.first + run.pages {
            if is_used(&buffer[from..from + PAGE]) {
                if from != to {
                    buffer.copy_within(from..from + PAGE, to);
                }
                to += PAGE;
                match kept.last_mut() {
                    Some(run) if run.first + run.pages == page => run.pages += 1,
                    _ => kept.push(Run { first: page, pages: 1 }),
                }
            }
            from += PAGE;
        }
    }
    buffer.truncate(to);
    Ok(kept)
}

fn is_used(page: &[u8]) -> bool {
    // In groups, which the compiler compares many bytes at a time.
    page.as_chunks::<16>().0.iter().any(|group| *group != [0; 16])
}

fn bytes_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.bytes()).sum()
}

/// Does `work` for each item, with a buffer to work in, on as many processors
/// as are of use. The first error ends it.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T, &mut Vec<u8>) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    let workers = workers.min(MAX_WORKERS).min(items.len());
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results = Mutex::new(Ok(Vec::with_capacity(items.len())));
    let worker = || {
        let mut buffer = Vec::with_capacity(PIECE_PAGES * PAGE + OVERHEAD);
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { break };
            let result = work(number, item, &mut buffer);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *results, result) {
                (Ok(results), Ok(result)) => results.push(result),
                (results, Err(error)) => {
                    failed.store(true, Ordering::Relaxed);
                    *results = Err(error);
                }
                (Err(_), Ok(_)) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(worker);
        }
        worker();
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn written(path: &Path, content: &[u8]) -> io::Result<File> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    Ok(file)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn cipher_failed(_: Unspecified) -> io::Error {
    io::Error::other("the cipher failed")
}

fn damaged(_: NotOpened) -> io::Error {
    let text = "it does not open: its key is another one, or it was changed";
    io::Error::new(io::ErrorKind::InvalidData, text)
}
