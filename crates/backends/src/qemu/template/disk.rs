//! Templates on disk.
//!
//! A folder for each: the used extents of the memory one after the other, the
//! device state, and a manifest with where the extents belong and checksums. It
//! is written beside its place, flushed and renamed, so a template is there
//! whole or not at all. The checksums find damage, not forgery: only root can
//! write here, and root needs no forgery.
//!
//! Reading one takes two steps: [`open`] finds everything but the memory, which
//! [`Fill`] reads while the machine that wants it starts.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use domain::image::digest::Digest;
use rustix::fs::SeekFrom;
use serde::{Deserialize, Serialize};

use super::{
    super::{memfd, stub},
    MadeFor,
};

/// Memory is looked at in pages.
const PAGE: usize = 4096;
/// How much is read at once.
const CHUNK: usize = 1024 * 1024;
/// The largest device state that is believed.
const MAX_STATE: u64 = 16 * 1024 * 1024;
/// How many templates stay that this version cannot use: another version may
/// share the folder.
const KEPT_UNUSABLE: usize = 2;
/// How far a clock may be off, in parts per million, before a template booted
/// at another frequency is not used any more.
const TOLERANCE_PPM: u64 = 100;

/// A machine that was booted and stopped.
#[derive(Debug)]
pub(in crate::qemu) struct Captured {
    pub(in crate::qemu) memory: OwnedFd,
    pub(in crate::qemu) state: OwnedFd,
    pub(in crate::qemu) tsc_khz: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    memory_bytes: u64,
    /// Offset and length of what is used.
    extents: Vec<(u64, u64)>,
    memory_crc32: u32,
    state_crc32: u32,
    tsc_khz: u64,
    /// Missing in a template of an older version, which nobody can use now.
    #[serde(default)]
    made_for: Option<MadeFor>,
}

/// A template whose memory is not filled yet.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) memory: Arc<OwnedFd>,
    pub(super) state: OwnedFd,
    pub(super) kernel: OwnedFd,
    pub(super) used_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) fill: Fill,
}

/// Reads the memory of a template.
#[derive(Debug)]
pub(super) struct Fill {
    place: PathBuf,
    memory: Arc<OwnedFd>,
    manifest: Manifest,
}

/// Writes a template.
pub(super) fn store(
    folder: &Path,
    key: Digest,
    captured: &Captured,
    made_for: &MadeFor,
) -> io::Result<()> {
    let place = folder.join(super::name(key));
    let new = folder.join(format!("{}.new", super::name(key)));
    remove(&new)?;
    fs::create_dir(&new)?;

    let memory = BufWriter::with_capacity(CHUNK, File::create(new.join("memory"))?);
    let memory_bytes = rustix::fs::seek(&captured.memory, SeekFrom::End(0))?;
    let mut writer = ExtentWriter { file: memory, extents: Vec::new(), crc: Default::default() };
    copy_used(&captured.memory, memory_bytes, &mut writer)?;
    let ExtentWriter { file, extents, crc } = writer;
    file.into_inner()?.sync_all()?;

    let mut state = Vec::new();
    File::from(memfd::reopen(captured.state.as_fd())?).read_to_end(&mut state)?;
    write_through(&new.join("state"), &state)?;

    let manifest = Manifest {
        memory_bytes,
        extents,
        memory_crc32: crc.finalize(),
        state_crc32: crc32fast::hash(&state),
        tsc_khz: captured.tsc_khz,
        made_for: Some(made_for.clone()),
    };
    write_through(&new.join("manifest.json"), &serde_json::to_vec(&manifest)?)?;
    File::open(&new)?.sync_all()?;
    remove(&place)?;
    fs::rename(&new, &place)?;
    File::open(folder)?.sync_all()
}

/// Whether there is a template, as far as can be told without reading it.
pub(super) fn has(folder: &Path, key: Digest, tsc_khz: u64) -> io::Result<bool> {
    Ok(manifest(&folder.join(super::name(key)), tsc_khz)?.is_some())
}

/// Finds a template. None if there is none to use.
pub(super) fn open(
    folder: &Path,
    key: Digest,
    tsc_khz: u64,
    kernel: &Path,
) -> io::Result<Option<Found>> {
    let place = folder.join(super::name(key));
    let Some(manifest) = manifest(&place, tsc_khz)? else { return Ok(None) };
    let mut state = Vec::new();
    File::open(place.join("state"))?.take(MAX_STATE).read_to_end(&mut state)?;
    if crc32fast::hash(&state) != manifest.state_crc32 {
        return Ok(None);
    }
    // The age of this file is when the template was last wanted.
    File::options().append(true).open(place.join("manifest.json"))?.set_modified(now())?;
    let memory = Arc::new(memfd::memory("coldframe-template", manifest.memory_bytes)?);
    Ok(Some(Found {
        state: memfd::sealed("coldframe-state", &[&state])?,
        kernel: memfd::sealed("coldframe-kernel", &[&stub::of(kernel)?])?,
        used_bytes: manifest.used_bytes(),
        total_bytes: manifest.memory_bytes,
        memory: Arc::clone(&memory),
        fill: Fill { place, memory, manifest },
    }))
}

impl Manifest {
    fn used_bytes(&self) -> u64 {
        self.extents.iter().fold(0, |sum, (_, length)| sum.saturating_add(*length))
    }
}

impl Fill {
    /// Fills the memory and seals it. A template that turns out to be damaged is
    /// removed, so that the next start makes it anew.
    pub(super) fn run(self) -> io::Result<()> {
        let whole = self.copy()?;
        if !whole {
            remove(&self.place)?;
            return Err(io::Error::other("the template on disk is damaged"));
        }
        memfd::seal(self.memory.as_fd())
    }

    fn copy(&self) -> io::Result<bool> {
        let mut file = File::open(self.place.join("memory"))?;
        let mut buffer = vec![0; CHUNK];
        let mut crc = crc32fast::Hasher::new();
        for &(offset, length) in &self.manifest.extents {
            let mut at = offset;
            let end = offset.saturating_add(length);
            while at < end {
                let part = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
                if file.read_exact(&mut buffer[..part]).is_err() {
                    return Ok(false);
                }
                crc.update(&buffer[..part]);
                memfd::write_at(self.memory.as_fd(), &buffer[..part], at)?;
                at += part as u64;
            }
        }
        let whole = memfd::length(self.memory.as_fd())? == self.manifest.memory_bytes;
        Ok(whole && crc.finalize() == self.manifest.memory_crc32)
    }
}

/// The manifest of a template that fits this host.
fn manifest(place: &Path, tsc_khz: u64) -> io::Result<Option<Manifest>> {
    let text = match fs::read(place.join("manifest.json")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(manifest) = serde_json::from_slice::<Manifest>(&text) else { return Ok(None) };
    let length = |name: &str| fs::metadata(place.join(name)).map_or(0, |file| file.len());
    let fits = manifest.tsc_khz.abs_diff(tsc_khz) <= tsc_khz * TOLERANCE_PPM / 1_000_000
        && length("memory") == manifest.used_bytes()
        && length("state") > 0;
    Ok(fits.then_some(manifest))
}

/// Removes all but `kept` templates, and what crashed attempts left. First go
/// those that nobody of this version can use any more, then those that were
/// wanted longest ago.
pub(super) fn forget_excess(folder: &Path, kept: usize, now: &MadeFor) -> io::Result<()> {
    let mut templates = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none() {
            let text = fs::read(path.join("manifest.json")).unwrap_or_default();
            let manifest = serde_json::from_slice::<Manifest>(&text).ok();
            let usable = manifest.and_then(|manifest| manifest.made_for);
            let usable = usable.is_some_and(|made_for| made_for.is_usable_with(now));
            let wanted = fs::metadata(path.join("manifest.json")).and_then(|file| file.modified());
            templates.push((usable, wanted.ok(), path));
        }
    }
    templates.sort();
    let unusable = templates.iter().filter(|(usable, ..)| !usable).count();
    let excess = templates.len().saturating_sub(kept).max(unusable.saturating_sub(KEPT_UNUSABLE));
    for (.., path) in templates.drain(..excess) {
        remove(&path)?;
        // A lock that somebody holds is found again under a new name: both then
        // make the same template, and one rename wins.
        fs::remove_file(path.with_extension("lock")).unwrap_or_default();
    }
    Ok(())
}

/// Collects what is worth keeping.
struct ExtentWriter {
    file: BufWriter<File>,
    extents: Vec<(u64, u64)>,
    crc: crc32fast::Hasher,
}

impl ExtentWriter {
    /// Adds one page.
    fn page(&mut self, offset: u64, page: &[u8]) -> io::Result<()> {
        let length = page.len() as u64;
        match self.extents.last_mut() {
            Some((start, so_far)) if *start + *so_far == offset => *so_far += length,
            _ => self.extents.push((offset, length)),
        }
        self.crc.update(page);
        self.file.write_all(page)
    }
}

/// Visits every page that holds anything but zeros.
fn copy_used(memory: &OwnedFd, end: u64, writer: &mut ExtentWriter) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < end {
        // Holes are skipped without being looked at, which would fill them.
        at = match rustix::fs::seek(memory, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(memory, SeekFrom::Hole(at))?;
        while at < hole {
            let part = usize::try_from(hole - at).map_or(CHUNK, |left| left.min(CHUNK));
            let read = rustix::io::pread(memory, &mut buffer[..part], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for page in buffer[..read].chunks(PAGE) {
                if page.iter().any(|byte| *byte != 0) {
                    writer.page(at, page)?;
                }
                at += page.len() as u64;
            }
        }
    }
    Ok(())
}

fn write_through(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
