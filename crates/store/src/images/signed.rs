//! From untrusted bytes to a manifest: the signature first, the content after.

use std::{fs, io, path::Path};

use domain::image::{ImageName, MANIFEST_FORMAT, Manifest, PINNED_KEYS, digest::Digest};
use ed25519_dalek::{Signature, VerifyingKey, pkcs8::DecodePublicKey};
use serde::Deserialize;

use super::ImageError;

/// The largest manifest that is read. One of 300 packages has 60 KiB.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// The length of a signature file.
pub(super) const SIGNATURE_BYTES: u64 = 64;

const END: &str = "-----END PUBLIC KEY-----";

/// The public keys that an installation trusts.
#[derive(Debug)]
pub(super) struct Keys(Vec<VerifyingKey>);

/// A manifest that a trusted key signed, and its digest.
#[derive(Debug)]
pub(super) struct Signed {
    pub(super) digest: Digest,
    pub(super) manifest: Manifest,
}

impl Keys {
    /// Reads the keys pinned in the folder of images.
    pub(super) fn read(folder: &Path) -> Result<Self, ImageError> {
        let path = folder.join(PINNED_KEYS);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::NoTrustedKey { path });
            }
            Err(error) => return Err(ImageError::io(path)(error)),
        };
        let blocks = text.split_inclusive(END).filter(|block| block.ends_with(END));
        let keys: Result<Vec<_>, _> =
            blocks.map(|block| VerifyingKey::from_public_key_pem(block.trim_start())).collect();
        match keys {
            Ok(keys) if !keys.is_empty() => Ok(Self(keys)),
            _ => Err(ImageError::malformed(format!("{} holds no public key", path.display()))),
        }
    }

    /// Checks that a trusted key signed `bytes`, then reads them.
    ///
    /// Nothing in `bytes` is looked at before the signature was found good.
    pub(super) fn open(
        &self,
        bytes: &[u8],
        signature: &[u8],
        name: &str,
    ) -> Result<Signed, ImageError> {
        let unsigned = |_| ImageError::Unsigned { name: name.to_owned() };
        let signature = Signature::from_slice(signature).map_err(unsigned)?;
        if !self.0.iter().any(|key| key.verify_strict(bytes, &signature).is_ok()) {
            return Err(ImageError::WrongKey { name: name.to_owned() });
        }
        let malformed = |error: serde_json::Error| ImageError::malformed(error.to_string());
        let Format { format } = serde_json::from_slice(bytes).map_err(malformed)?;
        if format != MANIFEST_FORMAT {
            return Err(ImageError::malformed(format!(
                "its manifest has format {format} and this version reads {MANIFEST_FORMAT}"
            )));
        }
        let manifest = serde_json::from_slice(bytes).map_err(malformed)?;
        Ok(Signed { digest: Digest::of(bytes), manifest })
    }
}

impl Signed {
    /// Refuses an image that was signed under another name: a trusted image put
    /// in the place of another one is not what its user asked for.
    pub(super) fn named(self, name: &ImageName) -> Result<Self, ImageError> {
        if self.manifest.name == *name {
            return Ok(self);
        }
        let reason = format!("it was signed as {} and lies under {name}", self.manifest.name);
        Err(ImageError::malformed(reason))
    }
}

/// What is read of a manifest before the rest is.
#[derive(Deserialize)]
struct Format {
    format: u32,
}
