//! One layer: uncompressed, checked on both sides, applied.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::{Hashing, Layer, OciError, unpack::Tree};
use crate::archive::ArchiveError;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// How a layer is compressed, as its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// With gzip.
    Gzip,
    /// With zstd.
    Zstd,
}

impl Compression {
    fn of(begin: &[u8]) -> Self {
        if begin.starts_with(GZIP) {
            Self::Gzip
        } else if begin.starts_with(ZSTD) {
            Self::Zstd
        } else {
            Self::None
        }
    }
}

/// Applies a layer to `tree` and checks that blob and content are what their
/// digests say.
///
/// They are checked while the layer is applied, because it is too large to read
/// twice. So on an error the tree is not what anyone described, and its owner
/// must throw it away.
pub(super) fn apply(blob: Box<dyn Read>, layer: &Layer, tree: &mut Tree) -> Result<(), OciError> {
    let broken = |error| OciError::Layer(ArchiveError::Unreadable(error));
    let mut blob = BufReader::with_capacity(64 * 1024, Hashing::new(blob));
    let compression = Compression::of(blob.fill_buf().map_err(broken)?);
    let content: Box<dyn Read + '_> = match compression {
        Compression::None => Box::new(&mut blob),
        Compression::Gzip => Box::new(MultiGzDecoder::new(&mut blob)),
        Compression::Zstd => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(&mut blob);
            Box::new(decoder.map_err(|error| broken(io::Error::other(error)))?)
        }
    };
    // Padding behind the last member counts for the digest, and is bounded too.
    let most = tree.bytes_left().saturating_mul(2).saturating_add(1 << 20);
    let mut content = Hashing::new(content.take(most));
    tree.apply(&mut content)?;
    io::copy(&mut content, &mut io::sink()).map_err(broken)?;
    if content.inner.limit() == 0 {
        return Err(OciError::Layer(ArchiveError::TooLarge("the bytes that are accepted")));
    }
    if content.digest() != layer.content {
        return Err(OciError::Digest { what: "the content of a layer" });
    }
    io::copy(&mut blob, &mut io::sink()).map_err(broken)?;
    match layer.blob {
        Some(expected) if blob.into_inner().digest() != expected => {
            Err(OciError::Digest { what: "a layer" })
        }
        _ => Ok(()),
    }
}
