//! A base image: what a sandbox boots from, as a signed list of files.
//!
//! An image is one folder with a kernel, the kernel modules that the guest's
//! init loads, and a read-only root file system. A [`Manifest`] lists each of
//! them with its size and SHA-256, every package that went in, and what must be
//! true inside a sandbox that runs it ([`facts`]).
//!
//! Invariants:
//!
//! - An image is named by the digest of its manifest's exact bytes, so two
//!   images with one digest are the same bytes throughout.
//! - A manifest lists exactly the files of [`ImageFile`]. There is no room for a
//!   path, so an archive that carries a manifest cannot choose where to write.
//!
//! Deliberately absent: reading files, signatures and locks, which are the
//! store's, and building, which only `cargo xtask image` does (S6).

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

pub mod digest;
pub mod facts;

use crate::allow::Entry;
use digest::Digest;
use facts::Facts;

/// The manifest layout that this version reads and writes.
pub const MANIFEST_FORMAT: u32 = 1;

/// The manifest's file name in an image's folder and in a release archive.
pub const MANIFEST: &str = "manifest.json";

/// The file beside it with the 64 bytes of the Ed25519 signature of its bytes.
pub const SIGNATURE: &str = "manifest.sig";

/// The file in the folder of images with the public keys that this installation
/// trusts, as one or more PEM blocks.
pub const PINNED_KEYS: &str = "trusted.pub";

/// The name of an image, such as `base`: 1 to 64 lower-case letters, digits,
/// `.`, `_` and `-`, beginning with a letter or digit, not ending in `.pub`.
///
/// It becomes the name of a folder, and the pinned public key is a file ending
/// in `.pub` beside those folders.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

/// A text that is not an image name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an image name; use 1 to 64 characters a-z, 0-9, '.', '_' or '-'")]
pub struct InvalidImageName(pub String);

/// One of the files an image consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageFile {
    /// The kernel, as QEMU's `-kernel` takes it.
    Kernel,
    /// A newc archive with the modules to load and the order to load them in.
    Modules,
    /// The read-only root file system.
    Rootfs,
}

/// What a manifest says about one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Length in bytes.
    pub size: u64,
    /// Digest of the content.
    pub sha256: Digest,
}

/// One entry for each [`ImageFile`], under the name the file has on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// See [`ImageFile::Kernel`].
    pub vmlinuz: FileEntry,
    /// See [`ImageFile::Modules`].
    #[serde(rename = "modules.cpio")]
    pub modules: FileEntry,
    /// See [`ImageFile::Rootfs`].
    #[serde(rename = "rootfs.erofs")]
    pub rootfs: FileEntry,
}

/// One package that went into an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Package name.
    pub name: String,
    /// Package version.
    pub version: String,
    /// Package architecture, or `all`.
    pub architecture: String,
    /// Digest of the package file.
    pub sha256: Digest,
}

/// The signed description of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Layout of this document, [`MANIFEST_FORMAT`].
    pub format: u32,
    /// The name it is meant to be installed under.
    pub name: ImageName,
    /// The distribution release, such as `bookworm`.
    pub release: String,
    /// The kernel release that `uname -r` prints inside.
    pub kernel_release: String,
    /// The time stamp used for every file, in seconds since 1970.
    pub source_date_epoch: u64,
    /// Digest of everything that decided the content apart from the packages.
    pub recipe: Digest,
    /// The programs that made it and their versions.
    pub tools: BTreeMap<String, String>,
    /// The account that processes run as unless asked otherwise.
    pub user: String,
    /// Variables that every process of a sandbox starts with.
    pub environment: BTreeMap<String, String>,
    /// The registries that the package clients in it are configured for, as
    /// entries of a list of permitted destinations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress_registries: Vec<Entry>,
    /// The files.
    pub files: Files,
    /// What `image verify` checks inside a running sandbox.
    pub facts: Facts,
    /// Every package, sorted.
    pub inputs: Vec<Input>,
}

/// An image on this machine whose signature and digests were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name.
    pub name: ImageName,
    /// Digest of the manifest's bytes.
    pub digest: Digest,
    /// Path of the kernel.
    pub kernel: PathBuf,
    /// Path of the module archive.
    pub modules: PathBuf,
    /// Path of the root file system.
    pub rootfs: PathBuf,
    /// The manifest.
    pub manifest: Manifest,
}

impl ImageName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The file beside the image's folder that is locked: shared by whoever runs
    /// from the image, exclusively by whoever replaces it.
    pub fn lock_file(&self) -> String {
        format!(".{self}.lock")
    }
}

impl FromStr for ImageName {
    type Err = InvalidImageName;

    fn from_str(raw: &str) -> Result<Self, InvalidImageName> {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = raw.len() <= 64
            && raw.chars().next().is_some_and(alphanumeric)
            && raw.chars().all(|c| alphanumeric(c) || matches!(c, '.' | '_' | '-'))
            && !raw.ends_with(".pub");
        if valid { Ok(Self(raw.to_owned())) } else { Err(InvalidImageName(raw.to_owned())) }
    }
}

impl TryFrom<String> for ImageName {
    type Error = InvalidImageName;

    fn try_from(raw: String) -> Result<Self, InvalidImageName> {
        raw.parse()
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> Self {
        name.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ImageFile {
    /// Every file, in the order a release archive holds them.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Modules, Self::Rootfs];

    /// The name on disk, in a manifest and in a release archive.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "vmlinuz",
            Self::Modules => "modules.cpio",
            Self::Rootfs => "rootfs.erofs",
        }
    }
}

impl Files {
    /// What the manifest says about `file`.
    pub const fn entry(&self, file: ImageFile) -> FileEntry {
        match file {
            ImageFile::Kernel => self.vmlinuz,
            ImageFile::Modules => self.modules,
            ImageFile::Rootfs => self.rootfs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_path_reads_specially_is_a_name() {
        for raw in ["", ".", "..", ".base", "../base", "a/b", "a\\b", "Base", "trusted.pub"] {
            assert!(raw.parse::<ImageName>().is_err(), "{raw:?}");
        }
        assert!("python-3.12".parse::<ImageName>().is_ok());
    }

    #[test]
    fn a_manifest_names_each_file_as_the_disk_does() {
        let entry = FileEntry { size: 1, sha256: Digest::of(b"x") };
        let files = Files { vmlinuz: entry, modules: entry, rootfs: entry };
        let json = serde_json::to_value(files).expect("serialises");
        let mut names: Vec<_> = json.as_object().expect("an object").keys().cloned().collect();
        names.sort();
        let mut expected = ImageFile::ALL.map(ImageFile::name);
        expected.sort_unstable();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_manifest_has_no_room_for_another_file() {
        let entry = serde_json::json!({"size": 1, "sha256": Digest::of(b"x")});
        let files = serde_json::json!({
            "vmlinuz": entry, "modules.cpio": entry, "rootfs.erofs": entry, "../x": entry,
        });
        assert!(serde_json::from_value::<Files>(files).is_err());
    }
}
