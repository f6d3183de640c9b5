//! Why an image cannot be used or imported.

use std::{io, path::PathBuf};

use domain::image::ImageName;

/// What went wrong with an image, as a caller can act on it.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such image here.
    #[error("there is no image {name}; build one or import a release archive")]
    NotFound { name: ImageName },

    /// The installation trusts no key yet, so no image can be used.
    #[error("no key for images is trusted here; {} is missing", path.display())]
    NoTrustedKey { path: PathBuf },

    /// The image carries no signature.
    #[error("image {name} is not signed; build or import it again")]
    Unsigned { name: String },

    /// The signature was made with a key that is not trusted, or over another
    /// manifest. The two cannot be told apart.
    #[error("the signature of image {name} was not made by a key that is trusted here")]
    WrongKey { name: String },

    /// A file is not what the signed manifest says.
    #[error("{file} of image {name} differs from its signed manifest; build or import it again")]
    Altered { name: ImageName, file: &'static str },

    /// Others than the owner could change the image.
    #[error("{} can be changed by others than its owner; make it writable by root only", path.display())]
    Exposed { path: PathBuf },

    /// What was to be imported does not even begin like an archive.
    #[error("not a release archive (tar or tar.gz)")]
    NotAnArchive,

    /// Not an image, or one for another version.
    #[error("not an image that can be used here: {reason}")]
    Malformed { reason: String },

    /// A running sandbox uses the image that would be replaced.
    #[error("image {name} is in use; stop the sandboxes and the server that use it first")]
    InUse { name: ImageName },

    /// The disk or the archive could not be read or written.
    #[error("could not access {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl ImageError {
    pub(super) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }

    /// For `map_err`: an I/O failure at `path`.
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}
