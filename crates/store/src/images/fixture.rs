//! Small signed images and the archives, honest and not, that carry them.

use std::{fs, path::Path};

use domain::image::{
    FileEntry, Files, ImageFile, MANIFEST, MANIFEST_FORMAT, Manifest, PINNED_KEYS, SIGNATURE,
    digest::Digest, facts::Facts,
};
use ed25519_dalek::{
    Signer, SigningKey,
    pkcs8::{EncodePublicKey, spki::der::pem::LineEnding},
};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::ImageStore;

/// A member of an archive, as written, whether or not that makes sense.
pub(super) struct Member<'a> {
    pub(super) name: &'a [u8],
    pub(super) kind: EntryType,
    pub(super) link: &'a str,
    pub(super) content: &'a [u8],
}

/// What the files of the image hold.
pub(super) fn content(file: ImageFile) -> Vec<u8> {
    file.name().repeat(1000).into_bytes()
}

pub(super) fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

/// The bytes of a manifest under `name` that lists [`content`].
pub(super) fn manifest(name: &str) -> Vec<u8> {
    let entry = |file| {
        let content = content(file);
        FileEntry { size: content.len() as u64, sha256: Digest::of(&content) }
    };
    let files = Files {
        vmlinuz: entry(ImageFile::Kernel),
        modules: entry(ImageFile::Modules),
        rootfs: entry(ImageFile::Rootfs),
    };
    let manifest = Manifest {
        format: MANIFEST_FORMAT,
        name: name.parse().expect("a name"),
        release: "bookworm".into(),
        kernel_release: "6.12".into(),
        source_date_epoch: 1,
        recipe: Digest::of(b"recipe"),
        tools: [].into(),
        user: "user".into(),
        environment: [].into(),
        files,
        egress_registries: Vec::new(),
        facts: Facts::default(),
        inputs: Vec::new(),
    };
    serde_json::to_vec(&manifest).expect("serialises")
}

/// An empty folder of images that trusts [`key`].
pub(super) fn folder() -> (TempDir, ImageStore) {
    let folder = tempfile::tempdir().expect("a folder");
    let pem = key().verifying_key().to_public_key_pem(LineEnding::LF).expect("encodes");
    fs::write(folder.path().join(PINNED_KEYS), pem).expect("written");
    let store = ImageStore::open(folder.path()).expect("opens");
    (folder, store)
}

/// Puts an image signed with `key` under `folder`.
pub(super) fn install(folder: &Path, name: &str, key: &SigningKey) {
    let folder = folder.join(name);
    let manifest = manifest(name);
    fs::create_dir(&folder).expect("made");
    fs::write(folder.join(SIGNATURE), key.sign(&manifest).to_bytes()).expect("written");
    fs::write(folder.join(MANIFEST), manifest).expect("written");
    for file in ImageFile::ALL {
        fs::write(folder.join(file.name()), content(file)).expect("written");
    }
}

/// A regular file in an archive.
pub(super) fn file<'a>(name: &'a str, content: &'a [u8]) -> Member<'a> {
    Member { name: name.as_bytes(), kind: EntryType::Regular, link: "", content }
}

/// An archive of `members`, written field by field, since the library that
/// writes archives refuses to write bad ones.
pub(super) fn archive<'a>(members: impl IntoIterator<Item = Member<'a>>) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for Member { name, kind, link, content } in members {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        if !link.is_empty() {
            header.set_link_name_literal(link).expect("fits");
        }
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).expect("written");
    }
    builder.into_inner().expect("finished")
}

/// An archive with a sound manifest for `base`, followed by `members`.
pub(super) fn signed_archive<'a>(members: impl IntoIterator<Item = Member<'a>>) -> Vec<u8> {
    let manifest = manifest("base");
    let signature = key().sign(&manifest).to_bytes();
    let mut all = vec![file(MANIFEST, &manifest), file(SIGNATURE, &signature)];
    for member in members {
        all.push(member);
    }
    archive(all)
}
