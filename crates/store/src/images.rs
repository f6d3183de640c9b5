//! The folder of images: what sandboxes on this machine start from.
//!
//! ```text
//!  <folder>/trusted.pub        the public keys this installation trusts
//!  <folder>/base/              one image
//!      manifest.json  manifest.sig  vmlinuz  modules.cpio  rootfs.erofs
//!  <folder>/.base.lock         shared by users of the image, exclusive to replace it
//!  <folder>/.base.stamp        which files were last found good
//! ```
//!
//! [`ImageStore::get`] is the only way to an [`Image`], and it checks the
//! signature of the manifest and the digest of every file first. A file that did
//! not change since it was last hashed is not hashed again.
//!
//! Invariants:
//!
//! - A file that differs from the manifest, by one bit, is never used (S7).
//! - Files under a running template are not replaced: whoever runs from an image
//!   holds a [`HeldImage`], and an import of that name is refused meanwhile.
//! - An import leaves the whole new image or no trace.
//! - Only its owner may be able to write to the folder or to an image. Otherwise
//!   a check would say nothing about the moment after it.
//!
//! Everything here blocks on the disk. Hashing an image takes about a second, so
//! asynchronous callers go through a blocking task.

use std::{
    fs,
    io::{self, Read, Write},
    ops::Deref,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use domain::image::{Image, ImageFile, ImageName, MANIFEST, SIGNATURE, digest::Digest};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};

mod archive;
pub mod built;
mod error;
#[cfg(test)]
mod fixture;
mod signed;
mod stamp;
#[cfg(test)]
mod tests;

pub use error::ImageError;

use signed::{Keys, MAX_MANIFEST_BYTES, SIGNATURE_BYTES, Signed};
use stamp::{Identity, Stamp, Stamps};

/// The images of this machine.
#[derive(Debug)]
pub struct ImageStore {
    folder: PathBuf,
    stamps: Stamps,
}

/// An image that cannot be replaced while this value lives.
#[derive(Debug)]
pub struct HeldImage {
    image: Image,
    _lock: fs::File,
}

/// One image of a listing.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: ImageName,
    /// The image, or why it cannot be used.
    pub image: Result<Image, ImageError>,
}

impl Deref for HeldImage {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

impl ImageStore {
    /// The images below `folder`, which must exist and be its owner's alone.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ImageError> {
        let folder = folder.into();
        check_owner(&folder, &folder.symlink_metadata().map_err(ImageError::io(&folder))?)?;
        Ok(Self { stamps: Stamps::new(folder.clone()), folder })
    }

    /// Every image with a valid name, in order of names.
    pub fn list(&self) -> Result<Vec<Listed>, ImageError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(ImageError::io(&self.folder))? {
            let entry = entry.map_err(ImageError::io(&self.folder))?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
            names.extend(name.filter(|_| is_folder));
        }
        names.sort();
        Ok(names.into_iter().map(|name| Listed { image: self.get(&name), name }).collect())
    }

    /// The image called `name`, after checking its signature and its files.
    pub fn get(&self, name: &ImageName) -> Result<Image, ImageError> {
        Ok(self.hold(name)?.image)
    }

    /// Like [`ImageStore::get`], and every file is hashed again, whatever is
    /// remembered of it.
    pub fn examine(&self, name: &ImageName) -> Result<Image, ImageError> {
        self.stamps.forget(name);
        self.get(name)
    }

    /// Like [`ImageStore::get`], and the image stays as it is until the returned
    /// value is dropped.
    pub fn hold(&self, name: &ImageName) -> Result<HeldImage, ImageError> {
        if !self.path(name).is_dir() {
            return Err(ImageError::NotFound { name: name.clone() });
        }
        let lock = self.lock_file(name)?;
        // Whoever holds it exclusively is between two renames.
        flock(&lock, FlockOperation::LockShared)
            .map_err(|error| ImageError::io(self.path(name))(error.into()))?;
        Ok(HeldImage { image: self.check(name)?, _lock: lock })
    }

    /// Reads a release archive and makes it the image of the name it was signed
    /// under, replacing one of that name that nobody uses.
    pub fn import(&self, archive: impl Read) -> Result<Image, ImageError> {
        let new = archive::unpack(archive, &self.folder, &Keys::read(&self.folder)?)?;
        let name = new.name().clone();
        let lock = self.lock_file(&name)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => new.move_to(&self.path(&name))?,
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(ImageError::InUse { name }),
            Err(error) => return Err(ImageError::io(self.path(&name))(error.into())),
        }
        drop(lock);
        self.get(&name)
    }

    /// Writes the image called `name` as a release archive.
    pub fn export(&self, name: &ImageName, archive: impl Write) -> Result<(), ImageError> {
        let held = self.hold(name)?;
        archive::pack(&held, &self.path(name), archive)
    }

    fn check(&self, name: &ImageName) -> Result<Image, ImageError> {
        let folder = self.path(name);
        check_owner(&folder, &folder.symlink_metadata().map_err(ImageError::io(&folder))?)?;
        let unsigned = || ImageError::Unsigned { name: name.to_string() };
        let bytes = read_small(&folder.join(MANIFEST), MAX_MANIFEST_BYTES)?;
        let bytes = bytes.ok_or_else(|| ImageError::malformed("it has no manifest"))?;
        let signature = read_small(&folder.join(SIGNATURE), SIGNATURE_BYTES)?;
        let signature = signature.ok_or_else(unsigned)?;
        let keys = Keys::read(&self.folder)?;
        let Signed { digest, manifest } =
            keys.open(&bytes, &signature, name.as_str())?.named(name)?;

        let path = |file: ImageFile| folder.join(file.name());
        let image = Image {
            name: name.clone(),
            digest,
            kernel: path(ImageFile::Kernel),
            modules: path(ImageFile::Modules),
            rootfs: path(ImageFile::Rootfs),
            manifest,
        };
        let mut stamp = Stamp { manifest: digest, files: [].into() };
        for file in ImageFile::ALL {
            let metadata = path(file).symlink_metadata();
            let metadata = metadata.map_err(|error| missing(name, file, &path(file), error))?;
            check_owner(&path(file), &metadata)?;
            if !metadata.is_file() || metadata.len() != image.manifest.files.entry(file).size {
                return Err(altered(name, file));
            }
            stamp.files.insert(file.name().to_owned(), Identity::of(&metadata));
        }
        if !self.stamps.vouch_for(name, &stamp) {
            self.hash(&image, &stamp)?;
            self.stamps.remember(name, stamp, SystemTime::now());
        }
        Ok(image)
    }

    /// Compares the content of every file with the manifest.
    fn hash(&self, image: &Image, stamp: &Stamp) -> Result<(), ImageError> {
        for file in ImageFile::ALL {
            let path = self.path(&image.name).join(file.name());
            let mut open = fs::File::open(&path).map_err(ImageError::io(&path))?;
            let mut hasher = Sha256::new();
            io::copy(&mut open, &mut hasher).map_err(ImageError::io(&path))?;
            let sha256 = Digest::from_bytes(hasher.finalize().into());
            // The file that was hashed must be the one that was looked at, and
            // must not have changed while it was read.
            let after = open.metadata().map_err(ImageError::io(&path))?;
            let same = stamp.files.get(file.name()) == Some(&Identity::of(&after));
            if !same || sha256 != image.manifest.files.entry(file).sha256 {
                return Err(altered(&image.name, file));
            }
        }
        Ok(())
    }

    fn path(&self, name: &ImageName) -> PathBuf {
        self.folder.join(name.as_str())
    }

    fn lock_file(&self, name: &ImageName) -> Result<fs::File, ImageError> {
        let path = self.folder.join(name.lock_file());
        let mut options = fs::OpenOptions::new();
        // A lock that others could open, they could hold for ever.
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(&path).map_err(ImageError::io(path))
    }
}

fn altered(name: &ImageName, file: ImageFile) -> ImageError {
    ImageError::Altered { name: name.clone(), file: file.name() }
}

fn missing(name: &ImageName, file: ImageFile, path: &Path, error: io::Error) -> ImageError {
    match error.kind() {
        io::ErrorKind::NotFound => altered(name, file),
        _ => ImageError::io(path)(error),
    }
}

/// Refuses what somebody other than us or root could change.
fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), ImageError> {
    let owner = metadata.uid();
    let ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if ours && (metadata.is_symlink() || metadata.mode() & 0o022 == 0) {
        return Ok(());
    }
    Err(ImageError::Exposed { path: path.to_owned() })
}

/// The content of a file of at most `limit` bytes, or nothing if it is missing.
fn read_small(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ImageError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ImageError::io(path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(ImageError::io(path))?;
    if bytes.len() as u64 > limit {
        return Err(ImageError::malformed(format!("{} is too long", path.display())));
    }
    Ok(Some(bytes))
}
