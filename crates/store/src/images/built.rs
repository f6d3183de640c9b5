//! Images that this installation makes itself, from OCI images.
//!
//! ```text
//!  <folder>/.local.pem        signs them; made at first use, leaves never
//!  <folder>/trusted.pub       its public half, trusted in this folder alone
//!  <folder>/oci-5d41…/        an image like any other
//! ```
//!
//! The files of the OCI image become the root file system; kernel and modules
//! are those of a base image. The manifest lists the digest of every input, and
//! says by its release that it was made here. From then on it is used like an
//! image that was imported: signature and digests are checked at each start.
//!
//! Invariants:
//!
//! - The name of an image is a function of its inputs, so the same inputs are
//!   built once.
//! - The key is trusted in a folder of its own. Whoever gets hold of it cannot
//!   make another `base`.
//! - A build leaves a whole image or nothing.
//!
//! Deliberately absent: who may start from which of them. The folder is one for
//! all organisations; `control` hands out an image to whoever named its inputs.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use domain::image::{
    Files, Image, ImageFile, ImageName, Input, MANIFEST, MANIFEST_FORMAT, Manifest, PINNED_KEYS,
    SIGNATURE, digest::Digest, facts::Facts,
};
use ed25519_dalek::{
    Signer as _, SigningKey,
    pkcs8::{
        DecodePrivateKey as _, EncodePrivateKey as _, EncodePublicKey as _,
        spki::der::pem::LineEnding,
    },
};
use rustix::fs::{FlockOperation, flock};

use super::{
    ImageError, ImageStore,
    archive::{Unpacked, write},
};
use crate::oci::{Blobs, OciError, OciImage, unpack::Limits};

mod root;

/// The release of an image that was made here.
pub const RELEASE: &str = "oci";
/// What the names of these images begin with.
pub const PREFIX: &str = "oci-";
/// Changes when the same inputs make another image.
const BUILDER: &str = "1";
/// The file with the private key.
const KEY: &str = ".local.pem";
/// What begins the name of a folder in which an image is being made.
const WORK: &str = ".work-";
/// How long packing may take.
const PACKING: Duration = Duration::from_secs(900);
/// The program that packs, and the package that brings it.
pub const MKFS: (&str, &str) = ("mkfs.erofs", "erofs-utils");

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The OCI image cannot be used.
    #[error(transparent)]
    Oci(#[from] OciError),
    /// Its files make no root file system that the guest can use.
    #[error("the image has no root file system that can be used: {0}")]
    Root(String),
    /// The file system could not be packed. The operator must look.
    #[error("{} could not pack the image: {reason}; it comes with {}", MKFS.0, MKFS.1)]
    Pack {
        /// What it said.
        reason: String,
    },
    /// The image could not be put into its place.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// The images that were made here.
#[derive(Debug)]
pub struct BuiltImages {
    folder: PathBuf,
    images: ImageStore,
    key: SigningKey,
}

/// A folder that is gone in the end.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "a folder of a build stays for now");
        }
    }
}

impl BuiltImages {
    /// The images below `folder`, which is made if it is not there. What an
    /// earlier process left half made is removed.
    pub fn open(folder: PathBuf, random: fn(&mut [u8])) -> Result<Self, ImageError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&folder).map_err(ImageError::io(&folder))?;
        for entry in fs::read_dir(&folder).map_err(ImageError::io(&folder))? {
            let entry = entry.map_err(ImageError::io(&folder))?;
            if entry.file_name().to_string_lossy().starts_with(WORK) {
                drop(Work(entry.path()));
            }
        }
        let key = key(&folder, random)?;
        let public = key.verifying_key().to_public_key_pem(LineEnding::LF);
        let public = public.map_err(|error| ImageError::malformed(error.to_string()))?;
        let pinned = folder.join(PINNED_KEYS);
        if fs::read_to_string(&pinned).ok().as_deref() != Some(public.as_str()) {
            replace(&folder, PINNED_KEYS, public.as_bytes(), 0o644)?;
        }
        Ok(Self { images: ImageStore::open(&folder)?, folder, key })
    }

    /// The images, for use.
    pub fn images(&self) -> &ImageStore {
        &self.images
    }

    /// What an image of these inputs is called.
    pub fn name(oci: &OciImage, base: &Image) -> ImageName {
        let inputs = format!("{BUILDER}\n{}\n{}\n", oci.digest, base.digest);
        let digits = Digest::of(inputs.as_bytes()).hex();
        let name = format!("{PREFIX}{}", &digits[..32]);
        name.parse().expect("a prefix and digits are a name")
    }

    /// A folder for what is needed while an image is made, such as blobs.
    pub fn work(&self) -> Result<tempfile::TempDir, ImageError> {
        let made = tempfile::Builder::new().prefix(WORK).tempdir_in(&self.folder);
        made.map_err(ImageError::io(&self.folder))
    }

    /// Makes the image of `oci`, unless there is one.
    ///
    /// Needs root, because the files of an image belong to whom they belong.
    pub fn build(&self, oci: &OciImage, blobs: &Blobs, base: &Image) -> Result<Image, BuildError> {
        let name = Self::name(oci, base);
        match self.images.get(&name) {
            Ok(image) => return Ok(image),
            Err(ImageError::NotFound { .. }) => {}
            Err(error) => tracing::warn!(%name, %error, "an image is made again"),
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let work = Work(self.folder.join(format!("{WORK}{}-{number}", std::process::id())));
        let made = work.0.join("image");
        let tree = work.0.join("root");
        for path in [&work.0, &made, &tree] {
            let mode = if path == &work.0 { 0o700 } else { 0o755 };
            fs::DirBuilder::new().mode(mode).create(path).map_err(ImageError::io(path))?;
        }
        blobs.unpack(oci, &tree, Limits::default())?;
        let prepared = root::prepare(&tree).map_err(BuildError::Root)?;
        pack(&tree, &made.join(ImageFile::Rootfs.name()), base.manifest.source_date_epoch)?;
        let copy = |file: ImageFile, from: &Path| {
            let mut content = fs::File::open(from).map_err(ImageError::io(from))?;
            write(&made.join(file.name()), &mut content)
        };
        let files = Files {
            vmlinuz: copy(ImageFile::Kernel, &base.kernel)?,
            modules: copy(ImageFile::Modules, &base.modules)?,
            rootfs: described(&made.join(ImageFile::Rootfs.name()))?,
        };
        let manifest = manifest(&name, oci, base, files, prepared);
        let bytes = serde_json::to_vec_pretty(&manifest);
        let bytes = bytes.map_err(|error| ImageError::malformed(error.to_string()))?;
        write(&made.join(MANIFEST), &mut bytes.as_slice())?;
        write(&made.join(SIGNATURE), &mut self.key.sign(&bytes).to_bytes().as_slice())?;
        self.install(&name, made)?;
        Ok(self.images.get(&name)?)
    }

    /// Removes an image that nothing runs from. One that is in use stays.
    pub fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        let place = self.folder.join(name.as_str());
        if !name.as_str().starts_with(PREFIX) || !place.exists() {
            return Ok(());
        }
        let lock = self.images.lock_file(name)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ImageError::InUse { name: name.clone() });
        }
        self.images.stamps.forget(name);
        fs::remove_dir_all(&place).map_err(ImageError::io(place))
    }

    fn install(&self, name: &ImageName, made: PathBuf) -> Result<(), ImageError> {
        let place = self.folder.join(name.as_str());
        let lock = self.images.lock_file(name)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Unpacked::of(name.clone(), made).move_to(&place),
            // Another build of the same inputs was first, and is in use.
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(()),
            Err(error) => Err(ImageError::io(place)(error.into())),
        }
    }
}

fn manifest(
    name: &ImageName,
    oci: &OciImage,
    base: &Image,
    files: Files,
    prepared: root::Prepared,
) -> Manifest {
    let input = |name: &str, version: &str, sha256| Input {
        name: name.to_owned(),
        version: version.to_owned(),
        architecture: "amd64".to_owned(),
        sha256,
    };
    let mut inputs = vec![
        input("base-image", base.name.as_str(), base.digest),
        input("oci-config", "1", oci.config),
        input("oci-manifest", "1", oci.digest),
    ];
    for (index, layer) in oci.layers.iter().enumerate() {
        let name = format!("oci-layer-{index:03}");
        inputs.push(input(&name, "1", layer.blob.unwrap_or(layer.content)));
    }
    let mut environment = base.manifest.environment.clone();
    environment.extend(oci.environment.iter().cloned());
    Manifest {
        format: MANIFEST_FORMAT,
        name: name.clone(),
        release: RELEASE.to_owned(),
        kernel_release: base.manifest.kernel_release.clone(),
        source_date_epoch: base.manifest.source_date_epoch,
        recipe: Digest::of(BUILDER.as_bytes()),
        tools: BTreeMap::from([(MKFS.0.to_owned(), version())]),
        user: root::USER.to_owned(),
        environment,
        files,
        egress_registries: Vec::new(),
        facts: Facts {
            users: vec![prepared.user],
            setuid: prepared.setuid,
            listening: base.manifest.facts.listening.clone(),
            interfaces: base.manifest.facts.interfaces.clone(),
            ..Facts::default()
        },
        inputs,
    }
}

/// Packs the tree as the base image is packed.
fn pack(tree: &Path, image: &Path, epoch: u64) -> Result<(), BuildError> {
    let failed = |reason: String| BuildError::Pack { reason };
    let mut child = Command::new(MKFS.0)
        // A lower level than that of a base image: it is made while somebody waits.
        .args(["-zlz4hc,3", "-C16384", "--preserve-mtime", "--quiet"])
        .args(["-U", "00000000-0000-4000-8000-000000000000"])
        .arg(image)
        .arg(tree)
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    // It writes a few lines at most; what it writes beyond a pipe's room would
    // stop it, and then its time runs out.
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) => break status,
            None if begun.elapsed() > PACKING => {
                // It ends whether or not it was there to be killed.
                drop(child.kill());
                drop(child.wait());
                return Err(failed("it took too long".to_owned()));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        drop(stderr.take(4096).read_to_string(&mut said));
    }
    Err(failed(format!("{status}: {}", said.trim())))
}

fn version() -> String {
    let output = Command::new(MKFS.0).arg("-V").stdin(Stdio::null()).output();
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned()
}

/// Makes a file that another program wrote last, and says what it is.
fn described(path: &Path) -> Result<domain::image::FileEntry, ImageError> {
    let io = ImageError::io;
    let mut file = fs::File::open(path).map_err(io(path))?;
    let mut permissions = file.metadata().map_err(io(path))?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    file.set_permissions(permissions).map_err(io(path))?;
    file.sync_all().map_err(io(path))?;
    let size = file.metadata().map_err(io(path))?.len();
    let mut hasher = <sha2::Sha256 as sha2::Digest>::new();
    io::copy(&mut file, &mut hasher).map_err(io(path))?;
    let sha256 = Digest::from_bytes(sha2::Digest::finalize(hasher).into());
    Ok(domain::image::FileEntry { size, sha256 })
}

/// The key in `folder`, made if there is none.
fn key(folder: &Path, random: fn(&mut [u8])) -> Result<SigningKey, ImageError> {
    let path = folder.join(KEY);
    if !path.exists() {
        let mut seed = zeroize::Zeroizing::new([0; 32]);
        random(seed.as_mut_slice());
        let pem = SigningKey::from_bytes(&seed).to_pkcs8_pem(LineEnding::LF);
        let pem = pem.map_err(|error| ImageError::malformed(error.to_string()))?;
        replace(folder, KEY, pem.as_bytes(), 0o600)?;
    }
    let metadata = path.symlink_metadata().map_err(ImageError::io(&path))?;
    if !metadata.is_file() || metadata.mode() & 0o077 != 0 {
        return Err(ImageError::Exposed { path });
    }
    let pem = zeroize::Zeroizing::new(fs::read_to_string(&path).map_err(ImageError::io(&path))?);
    SigningKey::from_pkcs8_pem(&pem)
        .map_err(|_| ImageError::malformed(format!("{} is no private key", path.display())))
}

/// Writes a small file whole or not at all.
fn replace(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> Result<(), ImageError> {
    let path = folder.join(name);
    let beside = folder.join(format!("{name}.new"));
    let write = || {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(&beside)?;
        io::Write::write_all(&mut &file, bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    };
    write().map_err(ImageError::io(path.clone()))
}

#[cfg(test)]
mod tests;
