//! Release archives: one image as a tar file, plain or compressed with gzip.
//!
//! An archive comes from anywhere. It is read front to back once:
//!
//! 1. `manifest.json` and `manifest.sig` come first, and nothing is written
//!    before a trusted key is found to have signed the manifest.
//! 2. Then each file that the manifest lists, once, with exactly that size and
//!    digest.
//!
//! Members are regular files with those exact names. A link, a device, a folder,
//! an extended header, another name, a second copy: the archive is refused, and
//! the folder it was being unpacked to is removed. What an archive says about
//! owners, modes and times is not looked at.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use domain::image::{FileEntry, Image, ImageFile, ImageName, MANIFEST, SIGNATURE, digest::Digest};
use flate2::bufread::GzDecoder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, Entry, EntryType, Header};

use super::{
    ImageError,
    signed::{Keys, MAX_MANIFEST_BYTES, SIGNATURE_BYTES, Signed},
};

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// An image unpacked beside its place; removed on drop unless it was moved.
#[derive(Debug)]
pub(super) struct Unpacked {
    name: ImageName,
    folder: PathBuf,
}

impl Unpacked {
    /// An image that was made in `folder`.
    pub(super) fn of(name: ImageName, folder: PathBuf) -> Self {
        Self { name, folder }
    }

    pub(super) fn name(&self) -> &ImageName {
        &self.name
    }

    /// Puts the image at `place`. What was there before is removed.
    pub(super) fn move_to(self, place: &Path) -> Result<(), ImageError> {
        let io = |error: rustix::io::Errno| ImageError::io(place)(error.into());
        match renameat_with(CWD, &self.folder, CWD, place, RenameFlags::EXCHANGE) {
            Err(rustix::io::Errno::NOENT) => {
                rustix::fs::rename(&self.folder, place).map_err(io)?;
            }
            moved => moved.map_err(io)?,
        }
        let parent = place.parent().unwrap_or(place);
        let parent = fs::File::open(parent).map_err(ImageError::io(parent))?;
        parent.sync_all().map_err(ImageError::io(place))
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // After a move this is the image that was replaced, or nothing.
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Reads `archive` into a new folder below `folder`.
pub(super) fn unpack(
    archive: impl Read,
    folder: &Path,
    keys: &Keys,
) -> Result<Unpacked, ImageError> {
    let mut archive = BufReader::new(archive);
    let compressed = archive.fill_buf().map_err(broken)?.starts_with(GZIP_MAGIC);
    if compressed {
        read(GzDecoder::new(archive), folder, keys)
    } else {
        read(archive, folder, keys)
    }
}

/// Writes `image`, whose files are in `folder`, as an archive.
pub(super) fn pack(image: &Image, folder: &Path, archive: impl Write) -> Result<(), ImageError> {
    let mut builder = Builder::new(archive);
    for name in [MANIFEST, SIGNATURE].into_iter().chain(ImageFile::ALL.map(ImageFile::name)) {
        let path = folder.join(name);
        let file = fs::File::open(&path).map_err(ImageError::io(&path))?;
        let mut header = Header::new_ustar();
        header.set_size(file.metadata().map_err(ImageError::io(&path))?.len());
        header.set_mode(0o644);
        header.set_mtime(image.manifest.source_date_epoch);
        header.set_entry_type(EntryType::Regular);
        builder.append_data(&mut header, name, file).map_err(ImageError::io(&path))?;
    }
    let mut archive = builder.into_inner().map_err(ImageError::io(folder))?;
    archive.flush().map_err(ImageError::io(folder))
}

fn read(archive: impl Read, folder: &Path, keys: &Keys) -> Result<Unpacked, ImageError> {
    let mut archive = Archive::new(archive);
    // Raw, because an extension that renames or resizes the next member is
    // something to refuse, not to apply.
    let mut members = archive.entries().map_err(broken)?.raw(true);
    let mut first = |name, limit| {
        let member = members.next().ok_or_else(|| ImageError::malformed("the archive is empty"));
        small(member?.map_err(unread)?, name, limit)
    };
    let manifest = first(MANIFEST, MAX_MANIFEST_BYTES)?;
    let signature = first(SIGNATURE, SIGNATURE_BYTES)?;
    let signed = keys.open(&manifest, &signature, "in the archive")?;

    let unpacked = make_folder(folder, &signed)?;
    write(&unpacked.folder.join(MANIFEST), &mut manifest.as_slice())?;
    write(&unpacked.folder.join(SIGNATURE), &mut signature.as_slice())?;
    let mut wanted = ImageFile::ALL.to_vec();
    for member in members {
        let mut member = member.map_err(broken)?;
        let name = member.path_bytes().into_owned();
        let at = wanted.iter().position(|file| file.name().as_bytes() == name.as_slice());
        let at = at.ok_or_else(|| unexpected(&name))?;
        let file = wanted.swap_remove(at);
        let entry = signed.manifest.files.entry(file);
        if !is_plain(&member, entry.size) {
            return Err(unexpected(&name));
        }
        let written = write(&unpacked.folder.join(file.name()), &mut member)?;
        if written.size != entry.size {
            return Err(ImageError::malformed("the archive ends early"));
        }
        if written != entry {
            return Err(ImageError::Altered { name: unpacked.name.clone(), file: file.name() });
        }
    }
    match wanted.first() {
        None => Ok(unpacked),
        Some(file) => Err(ImageError::malformed(format!("{} is not in the archive", file.name()))),
    }
}

/// A folder that no other import uses.
fn make_folder(folder: &Path, signed: &Signed) -> Result<Unpacked, ImageError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = signed.manifest.name.clone();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".{name}.import.{}.{number}", std::process::id()));
    fs::DirBuilder::new().mode(0o755).create(&path).map_err(ImageError::io(&path))?;
    Ok(Unpacked { name, folder: path })
}

/// The content of a member that must be a short file called `name`.
fn small(mut member: Entry<'_, impl Read>, name: &str, limit: u64) -> Result<Vec<u8>, ImageError> {
    let size = member.size();
    if *member.path_bytes() != *name.as_bytes() || size > limit || !is_plain(&member, size) {
        return Err(ImageError::malformed(format!("the archive does not continue with {name}")));
    }
    let mut bytes = Vec::new();
    member.read_to_end(&mut bytes).map_err(broken)?;
    Ok(bytes)
}

fn is_plain(member: &Entry<'_, impl Read>, size: u64) -> bool {
    member.header().entry_type() == EntryType::Regular && member.size() == size
}

/// Writes a new file that is on disk when this returns.
pub(super) fn write(path: &Path, content: &mut impl Read) -> Result<FileEntry, ImageError> {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o644).open(path);
    let mut file = file.map_err(ImageError::io(path))?;
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n_read = content.read(&mut buffer).map_err(broken)?;
        if n_read == 0 {
            break;
        }
        hasher.update(&buffer[..n_read]);
        file.write_all(&buffer[..n_read]).map_err(ImageError::io(path))?;
        size += n_read as u64;
    }
    file.sync_all().map_err(ImageError::io(path))?;
    Ok(FileEntry { size, sha256: Digest::from_bytes(hasher.finalize().into()) })
}

/// What stands where a header belongs may be any file, and the error quotes it.
fn unread(error: io::Error) -> ImageError {
    match error.kind() {
        io::ErrorKind::Other
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidData
        | io::ErrorKind::UnexpectedEof => ImageError::NotAnArchive,
        _ => broken(error),
    }
}

fn broken(error: io::Error) -> ImageError {
    let said: String = error.to_string().chars().take(200).flat_map(char::escape_debug).collect();
    ImageError::malformed(format!("the archive cannot be read: {said}"))
}

fn unexpected(name: &[u8]) -> ImageError {
    let name: String = String::from_utf8_lossy(name).chars().take(100).collect();
    ImageError::malformed(format!(
        "the archive holds {name:?}, which does not belong into an image"
    ))
}
