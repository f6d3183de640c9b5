//! Keeping keys of snapshots: encrypted under a key of the installation.
//!
//! ```text
//!  file in the state folder ──► Sealing ──► column `sealed_key`
//!  (32 bytes, mode 0600)        AES-256-GCM, bound to the snapshot's id
//! ```
//!
//! So a database alone, or a copy of one, opens no snapshot. The file is made
//! once, whole or not at all; one that is missing while there are snapshots is
//! an error and never replaced, because a new key would make all of them
//! unreadable in silence.
//!
//! Absent: the snapshots' own encryption, which is the backend's.

use std::{
    fmt, fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand,
};
use domain::{id::SnapshotId, snapshot::SnapshotKey};
use zeroize::{Zeroize as _, Zeroizing};

use crate::{Store, error::StoreError, sql::values};

/// Goes before the id in what a sealed key is bound to.
const CONTEXT: &str = "coldframe snapshot key 1 ";
/// Bytes of a key.
const KEY: usize = 32;

/// The key under which keys of snapshots are kept. Never printed.
pub struct Sealing {
    key: LessSafeKey,
}

impl Sealing {
    /// From 32 random bytes.
    pub fn from_random(mut bytes: [u8; KEY]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("32 bytes are a key of AES-256");
        bytes.zeroize();
        Self { key: LessSafeKey::new(key) }
    }

    /// The text that is kept.
    ///
    /// Nonces are random: an installation would need billions of snapshots for
    /// two of them to meet.
    pub(crate) fn seal(&self, id: &SnapshotId, key: &SnapshotKey) -> Result<String, StoreError> {
        let refused = |_| StoreError::Sealed(id.clone());
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(refused)?;
        let mut sealed = nonce.to_vec();
        let mut body = key.expose().to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, aad(id), &mut body).map_err(refused)?;
        sealed.extend_from_slice(&body);
        Ok(hex(&sealed))
    }

    /// The key that was kept.
    pub(crate) fn open(&self, id: &SnapshotId, sealed: &str) -> Result<SnapshotKey, StoreError> {
        let refused = || StoreError::Sealed(id.clone());
        let bytes = unhex(sealed).ok_or_else(refused)?;
        let (nonce, body) = bytes.split_at_checked(NONCE_LEN).ok_or_else(refused)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| refused())?;
        let mut body = Zeroizing::new(body.to_vec());
        let opened = self.key.open_in_place(nonce, aad(id), &mut body).map_err(|_| refused())?;
        let key = <[u8; KEY]>::try_from(&*opened).map_err(|_| refused())?;
        Ok(SnapshotKey::from_random(key))
    }
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealing(..)")
    }
}

impl Store {
    /// The same store with the sealing key of the installation, which is made at
    /// the first start.
    ///
    /// # Errors
    /// When the file is missing, readable by others, or not the one that the
    /// snapshots on record were kept under.
    pub async fn with_sealing_key(self, path: &Path) -> Result<Self, StoreError> {
        let kept = self
            .fetch_optional(
                "SELECT id, sealed_key FROM snapshots WHERE sealed_key IS NOT NULL LIMIT 1",
                values![],
            )
            .await?;
        let unusable = |reason: &str, source: Option<io::Error>| StoreError::SealingKey {
            path: path.to_owned(),
            reason: reason.to_owned(),
            source,
        };
        let key = match (read(path), &kept) {
            (Ok(key), _) => key,
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {
                make(path).map_err(|error| unusable("could not be made", Some(error)))?
            }
            (Err(error), Some(_)) if error.kind() == io::ErrorKind::NotFound => {
                let reason = "is missing, and without it no snapshot and no paused sandbox can \
                              be opened; put it back from a backup of the state folder";
                return Err(unusable(reason, None));
            }
            (Err(error), _) => return Err(unusable("cannot be used", Some(error))),
        };
        let sealing = Sealing::from_random(*key);
        if let Some(row) = kept {
            let opened = sealing.open(&row.parsed("id")?, &row.text("sealed_key")?);
            opened.map_err(|_| {
                let reason = "is not the one that the snapshots of this database were kept under; \
                              put that one back";
                unusable(reason, None)
            })?;
        }
        Ok(self.with_sealing(sealing))
    }
}

fn aad(id: &SnapshotId) -> Aad<String> {
    Aad::from(format!("{CONTEXT}{id}"))
}

/// Reads the key: 64 hexadecimal digits that only we can read.
fn read(path: &Path) -> io::Result<Zeroizing<[u8; KEY]>> {
    let file = fs::File::open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        let text = "others can read it; make it yours alone with chmod 600";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(1024).read_to_string(&mut text)?;
    let bytes = unhex(text.trim_end()).map(Zeroizing::new);
    let key = bytes.and_then(|bytes| <[u8; KEY]>::try_from(bytes.as_slice()).ok());
    key.map(Zeroizing::new).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "it is not 64 hexadecimal digits")
    })
}

/// Makes the key: on disk before it is used, and never over another.
fn make(path: &Path) -> io::Result<Zeroizing<[u8; KEY]>> {
    let mut key = Zeroizing::new([0; KEY]);
    rand::fill(key.as_mut_slice()).map_err(|_| io::Error::other("there is no randomness"))?;
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(file, "{}", *Zeroizing::new(hex(key.as_slice())))?;
    file.sync_all()?;
    // Unlike a rename, a link replaces nothing.
    fs::hard_link(&new, path)?;
    fs::remove_file(&new)?;
    fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(key)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) || !text.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn id(n: u8) -> SnapshotId {
        SnapshotId::from_random([n; 16])
    }

    /// S49: a sealed key opens under its own id and the same sealing key only.
    #[test]
    fn a_key_opens_where_it_was_sealed_and_nowhere_else() {
        let sealing = Sealing::from_random([7; 32]);
        let key = SnapshotKey::from_random([0x5a; 32]);
        let sealed = sealing.seal(&id(1), &key).expect("sealed");
        assert!(!sealed.contains("5a5a5a"));
        assert_ne!(sealed, sealing.seal(&id(1), &key).expect("sealed again"));
        let opened = sealing.open(&id(1), &sealed).expect("opened");
        assert_eq!(opened.expose(), key.expose());
        assert!(sealing.open(&id(2), &sealed).is_err());
        assert!(Sealing::from_random([8; 32]).open(&id(1), &sealed).is_err());
        for broken in ["", "zz", &sealed[2..], &sealed[..sealed.len() - 2], "é0"] {
            assert!(sealing.open(&id(1), broken).is_err(), "{broken}");
        }
        assert_eq!(format!("{sealing:?}"), "Sealing(..)");
    }

    #[test]
    fn a_key_file_is_made_once_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("snapshots.key");
        let made = make(&path).expect("made");
        assert_eq!(*read(&path).expect("read"), *made);
        let mode = fs::metadata(&path).expect("its metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(make(&path).is_err(), "it was replaced");
        assert_eq!(*read(&path).expect("read"), *made);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("changed");
        assert!(read(&path).expect_err("refused").to_string().contains("chmod 600"));
    }
}
