//! The builder's key pair.
//!
//! The private key is made at the first build and never leaves the builder's own
//! folder. An installation knows the public key; whoever can sign decides what
//! its sandboxes run.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use anyhow::{Context, ensure};
use ed25519_dalek::{
    Signer, SigningKey,
    pkcs8::{DecodePrivateKey, EncodePrivateKey, EncodePublicKey, spki::der::pem::LineEnding},
};

/// A key that signs images.
pub(crate) struct Signing(SigningKey);

impl Signing {
    /// The key in `folder`, made if there is none.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("image.pem");
        if !path.exists() {
            fs::DirBuilder::new().recursive(true).create(folder)?;
            make(&path).with_context(|| format!("{} could not be made", path.display()))?;
        }
        let mode = fs::metadata(&path)?.mode();
        ensure!(mode & 0o077 == 0, "{} can be read by others; run: chmod 600 {0}", path.display());
        let key = SigningKey::from_pkcs8_pem(&fs::read_to_string(&path)?);
        Ok(Self(key.with_context(|| format!("{} is not a private key", path.display()))?))
    }

    /// The signature of `bytes`.
    pub(crate) fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.0.sign(bytes).to_bytes()
    }

    /// The public key as an installation pins it.
    pub(crate) fn public_key(&self) -> anyhow::Result<String> {
        Ok(self.0.verifying_key().to_public_key_pem(LineEnding::LF)?)
    }
}

fn make(path: &Path) -> anyhow::Result<()> {
    let mut seed = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
    let pem = SigningKey::from_bytes(&seed).to_pkcs8_pem(LineEnding::LF)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(pem.as_bytes())?;
    Ok(file.sync_all()?)
}
