//! Putting a finished image where sandboxes find it.
//!
//! An image appears whole or not at all: it is written beside its place and
//! moved there under an exclusive lock. A folder that a running server uses is
//! never replaced.

use std::{
    fs,
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use domain::image::{
    FileEntry, Files, ImageFile, ImageName, MANIFEST, Manifest, PINNED_KEYS, SIGNATURE,
    digest::Digest,
};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use sha2::{Digest as _, Sha256};

use super::signing::Signing;

/// A folder of images.
#[derive(Debug)]
pub(crate) struct Images {
    folder: PathBuf,
}

impl Images {
    /// The images below `folder`, which is made if it is not there.
    pub(crate) fn open(folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Where the image called `name` is.
    pub(crate) fn path(&self, name: &ImageName) -> PathBuf {
        self.folder.join(name.as_str())
    }

    /// The digest and manifest of the installed image called `name`, if our own
    /// key signed it and every file is what the manifest says.
    pub(crate) fn installed(&self, name: &ImageName, key: &Signing) -> Option<(Digest, Manifest)> {
        let folder = self.path(name);
        let bytes = fs::read(folder.join(MANIFEST)).ok()?;
        // Ed25519 signatures are deterministic, so signing again is checking.
        if fs::read(folder.join(SIGNATURE)).ok()? != key.sign(&bytes) {
            return None;
        }
        let manifest: Manifest = serde_json::from_slice(&bytes).ok()?;
        let sound = describe(&folder).is_ok_and(|files| files == manifest.files);
        sound.then(|| (Digest::of(&bytes), manifest))
    }

    /// Makes the public key of `key` trusted, if nothing is trusted yet.
    pub(crate) fn pin(&self, key: &Signing) -> anyhow::Result<()> {
        let path = self.folder.join(PINNED_KEYS);
        let public = key.public_key()?;
        if !path.exists() {
            return Ok(fs::write(&path, public)?);
        }
        ensure!(
            fs::read_to_string(&path)?.contains(public.trim()),
            "{} does not trust this builder's key; to trust it, append:\n{public}",
            path.display()
        );
        Ok(())
    }

    /// Replaces the image called `name` by the content of `built`.
    pub(crate) fn replace(&self, name: &ImageName, built: &Path) -> anyhow::Result<()> {
        let new = self.folder.join(format!(".{name}.new"));
        if new.exists() {
            fs::remove_dir_all(&new)?;
        }
        fs::create_dir(&new)?;
        for file in ImageFile::ALL.map(ImageFile::name).into_iter().chain([MANIFEST, SIGNATURE]) {
            // A copy, because the work folder may be on another file system.
            fs::copy(built.join(file), new.join(file))?;
            fs::File::open(new.join(file))?.sync_all()?;
        }
        let mut options = fs::OpenOptions::new();
        // A lock that others could open, they could hold for ever.
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(self.folder.join(name.lock_file()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "{} is in use by a running server or sandbox; stop it, or build elsewhere with --out",
                self.path(name).display()
            );
        }
        let place = self.path(name);
        if place.exists() {
            renameat_with(CWD, &new, CWD, &place, RenameFlags::EXCHANGE)?;
            fs::remove_dir_all(&new)?;
        } else {
            fs::rename(&new, &place)?;
        }
        Ok(fs::File::open(&self.folder)?.sync_all()?)
    }
}

/// Size and digest of each file in `folder`.
pub(crate) fn describe(folder: &Path) -> anyhow::Result<Files> {
    let entry = |file: ImageFile| {
        let path = folder.join(file.name());
        measure(&path).with_context(|| format!("{} could not be read", path.display()))
    };
    Ok(Files {
        vmlinuz: entry(ImageFile::Kernel)?,
        modules: entry(ImageFile::Modules)?,
        rootfs: entry(ImageFile::Rootfs)?,
    })
}

fn measure(path: &Path) -> anyhow::Result<FileEntry> {
    let mut file = fs::File::open(path)?;
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n_read = file.read(&mut buffer)?;
        if n_read == 0 {
            return Ok(FileEntry { size, sha256: Digest::from_bytes(hasher.finalize().into()) });
        }
        hasher.update(&buffer[..n_read]);
        size += n_read as u64;
    }
}
