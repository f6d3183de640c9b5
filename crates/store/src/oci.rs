//! OCI images: from a layout, an archive or a registry to a tree of files.
//!
//! ```text
//!  registry ── fetch ──► folder of blobs ─┐
//!  oci: oci-archive: ── context ──────────┼─► resolve ─► layers ─► unpack
//!  docker-archive: ── context ────────────┘   (digests)  (digests)
//! ```
//!
//! Invariants:
//!
//! - A document or a layer is used only after its digest was found to be what
//!   the one above it says, down from the manifest; of a layer both that of the
//!   blob and that of what is in it.
//! - Unpacking writes below one folder that it was given open, and follows no
//!   symbolic link on the way ([`unpack`]).
//! - Sizes and counts are bounded before anything is allocated or written.
//!
//! Everything here but fetching blocks on the disk.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use domain::image::digest::Digest;
use sha2::{Digest as _, Sha256};

use crate::archive::{ArchiveError, context::Context};

mod address;
mod document;
mod layer;
pub mod registry;
#[cfg(test)]
mod tests;
pub mod unpack;

use document::{Config, Descriptor, Document, MAX_DOCUMENT, MAX_LAYERS, Saved, choose};
pub use layer::Compression;

/// Indexes within indexes that are followed.
const MAX_DEPTH: usize = 3;

/// Why an OCI image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// There is none, or it is not one that can be used here.
    #[error("{0}")]
    Unusable(String),
    /// A blob is not what its digest says.
    #[error("{what} of the image is not what its digest says; it was changed or cut off")]
    Digest {
        /// Which part.
        what: &'static str,
    },
    /// A layer is refused.
    #[error("a layer of the image is refused")]
    Layer(#[source] ArchiveError),
    /// The operator's table does not name the registry, or forbids the address.
    #[error("{0}")]
    Forbidden(String),
    /// The registry does not answer, or says no.
    #[error("the registry did not give the image: {0}")]
    Registry(String),
    /// The disk could not be read or written.
    #[error("could not access {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OciError {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

impl From<ArchiveError> for OciError {
    fn from(error: ArchiveError) -> Self {
        Self::Layer(error)
    }
}

/// Where blobs lie.
#[derive(Clone, Debug)]
pub enum Blobs {
    /// Files named by the digits of their digest.
    Folder(PathBuf),
    /// A layout below a path of a context.
    Layout(Context, String),
    /// What `docker save` wrote.
    Saved(Context),
}

/// An image whose documents were checked.
#[derive(Clone, Debug)]
pub struct OciImage {
    /// Names it: the digest of its manifest, or of its configuration where the
    /// archive has no manifest with digests.
    pub digest: Digest,
    /// Of its configuration.
    pub config: Digest,
    /// Its layers, the lowest first.
    pub layers: Vec<Layer>,
    /// The variables of its programs.
    pub environment: Vec<(String, String)>,
    /// The account of its programs, if it says.
    pub user: Option<String>,
    /// The folder of its programs, if it says.
    pub workdir: Option<String>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The digest of the blob; absent where only the content has one.
    pub blob: Option<Digest>,
    /// The digest of the tar file in it.
    pub content: Digest,
    /// Where the blob lies, for [`Blobs::Saved`].
    path: Option<String>,
}

impl Blobs {
    /// Finds an image and checks its documents. Of several, `reference` names one.
    pub fn image(&self, reference: Option<&str>) -> Result<OciImage, OciError> {
        match self {
            Self::Saved(archive) if archive.get("index.json").is_none() => {
                self.saved(archive, reference)
            }
            Self::Saved(archive) => {
                // Newer versions of Docker write a layout with the old names in it.
                Self::Layout(archive.clone(), String::new()).image(reference)
            }
            Self::Layout(layout, folder) => {
                let path = within(folder, "index.json");
                let absent = || OciError::Unusable(format!("there is no {path} in the context"));
                let index = layout.open(&path).ok_or_else(absent)?;
                match parse(&small(index)?)? {
                    Document::Index { manifests } => {
                        let chosen = choose(&manifests, reference).map_err(OciError::Unusable)?;
                        self.follow(chosen)
                    }
                    Document::Manifest { .. } => {
                        Err(OciError::Unusable(format!("{path} is no index")))
                    }
                }
            }
            Self::Folder(_) => Err(OciError::Unusable("blobs alone name no image".to_owned())),
        }
    }

    /// The image whose manifest, or index of manifests, has `digest`.
    pub fn by_digest(&self, digest: Digest) -> Result<OciImage, OciError> {
        let bytes = self.document(digest, "the manifest")?;
        self.described(digest, &bytes, 0)
    }

    fn follow(&self, descriptor: Descriptor) -> Result<OciImage, OciError> {
        self.by_digest(descriptor.digest)
    }

    fn described(&self, digest: Digest, bytes: &[u8], depth: usize) -> Result<OciImage, OciError> {
        match parse(bytes)? {
            Document::Index { manifests } if depth < MAX_DEPTH => {
                let chosen = choose(&manifests, None).map_err(OciError::Unusable)?;
                let bytes = self.document(chosen.digest, "the manifest")?;
                self.described(chosen.digest, &bytes, depth + 1)
            }
            Document::Index { .. } => Err(OciError::Unusable("its indexes are nested".to_owned())),
            Document::Manifest { config, layers } => {
                let bytes = self.document(config.digest, "the configuration")?;
                let layers = layers.into_iter().map(|layer| (Some(layer.digest), None)).collect();
                image(digest, config.digest, &bytes, layers)
            }
        }
    }

    fn saved(&self, archive: &Context, reference: Option<&str>) -> Result<OciImage, OciError> {
        let no = |what: &str| OciError::Unusable(format!("the archive has no {what}"));
        let list = archive.open("manifest.json").ok_or_else(|| no("manifest.json"))?;
        let list: Vec<Saved> = serde_json::from_slice(&small(list)?).map_err(unreadable)?;
        let named = |saved: &&Saved| match reference {
            None => true,
            Some(reference) => saved.repo_tags.iter().flatten().any(|tag| tag == reference),
        };
        let found: Vec<_> = list.iter().filter(named).collect();
        let saved = match found.as_slice() {
            [one] => one,
            [] => return Err(no("image of that name for this machine")),
            _ => {
                let what = "the archive holds several images; name one with :NAME:TAG";
                return Err(OciError::Unusable(what.to_owned()));
            }
        };
        let config = archive.open(&saved.config).ok_or_else(|| no("configuration"))?;
        let bytes = small(config)?;
        let layers = saved.layers.iter().map(|path| (None, Some(path.clone()))).collect();
        image(Digest::of(&bytes), Digest::of(&bytes), &bytes, layers)
    }

    /// Reads a document and checks its digest.
    fn document(&self, digest: Digest, what: &'static str) -> Result<Vec<u8>, OciError> {
        let bytes = small(self.open(digest)?)?;
        if Digest::of(&bytes) == digest { Ok(bytes) } else { Err(OciError::Digest { what }) }
    }

    fn open(&self, digest: Digest) -> Result<Box<dyn Read>, OciError> {
        let absent = || OciError::Unusable(format!("the image lacks {digest}"));
        match self {
            Self::Folder(folder) => {
                let path = folder.join(digest.hex());
                match std::fs::File::open(&path) {
                    Ok(file) => Ok(Box::new(file)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Err(absent()),
                    Err(error) => Err(OciError::io(path)(error)),
                }
            }
            Self::Layout(layout, folder) => {
                let path = within(folder, &format!("blobs/sha256/{}", digest.hex()));
                Ok(Box::new(layout.open(&path).ok_or_else(absent)?))
            }
            Self::Saved(_) => Err(absent()),
        }
    }

    /// The blob of a layer, not checked yet.
    fn layer(&self, layer: &Layer) -> Result<Box<dyn Read>, OciError> {
        match (self, &layer.path, layer.blob) {
            (Self::Saved(archive), Some(path), _) => {
                let absent = || OciError::Unusable(format!("the archive has no {path}"));
                Ok(Box::new(archive.open(path).ok_or_else(absent)?))
            }
            // A layout in an archive of Docker.
            (Self::Saved(archive), None, Some(blob)) => {
                Self::Layout(archive.clone(), String::new()).open(blob)
            }
            (_, _, Some(blob)) => self.open(blob),
            (_, _, None) => Err(OciError::Unusable("a layer lies nowhere".to_owned())),
        }
    }

    /// Unpacks every layer of `image` into the empty folder `root`.
    pub fn unpack(
        &self,
        image: &OciImage,
        root: &Path,
        bounds: unpack::Limits,
    ) -> Result<(), OciError> {
        let mut tree = unpack::Tree::open(root, bounds)?;
        for layer in &image.layers {
            layer::apply(self.layer(layer)?, layer, &mut tree)?;
        }
        Ok(())
    }
}

fn image(
    digest: Digest,
    config: Digest,
    bytes: &[u8],
    layers: Vec<(Option<Digest>, Option<String>)>,
) -> Result<OciImage, OciError> {
    let document: Config = serde_json::from_slice(bytes).map_err(unreadable)?;
    let unusable = |what: &str| Err(OciError::Unusable(what.to_owned()));
    if document.os != "linux" || document.architecture != "amd64" {
        return unusable("the image is not for linux/amd64");
    }
    if layers.len() > MAX_LAYERS {
        return unusable("the image has too many layers");
    }
    if layers.len() != document.rootfs.diff_ids.len() {
        return unusable("the image's configuration counts other layers than its manifest");
    }
    let process = document.config.unwrap_or_default();
    let environment = process.env.unwrap_or_default();
    let environment = environment.iter().filter_map(|variable| variable.split_once('='));
    let named = |text: Option<String>| text.filter(|text| !text.is_empty());
    let layers = layers.into_iter().zip(document.rootfs.diff_ids);
    Ok(OciImage {
        digest,
        config,
        layers: layers.map(|((blob, path), content)| Layer { blob, content, path }).collect(),
        environment: environment.map(|(name, value)| (name.into(), value.into())).collect(),
        user: named(process.user),
        workdir: named(process.working_dir),
    })
}

fn within(folder: &str, path: &str) -> String {
    if folder.is_empty() { path.to_owned() } else { format!("{folder}/{path}") }
}

fn parse(bytes: &[u8]) -> Result<Document, OciError> {
    serde_json::from_slice(bytes).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> OciError {
    OciError::Unusable(format!("a document of the image cannot be read: {error}"))
}

fn small(from: impl Read) -> Result<Vec<u8>, OciError> {
    let mut bytes = Vec::new();
    from.take(MAX_DOCUMENT + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| OciError::Layer(ArchiveError::Unreadable(error)))?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(OciError::Unusable("a document of the image is too long".to_owned()));
    }
    Ok(bytes)
}

/// Hashes what is read through it.
struct Hashing<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> Hashing<R> {
    fn new(inner: R) -> Self {
        Self { inner, hasher: Sha256::new() }
    }

    fn digest(self) -> Digest {
        Digest::from_bytes(self.hasher.finalize().into())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..n_read]);
        Ok(n_read)
    }
}
