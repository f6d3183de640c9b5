//! Values that many tests need: fixed where it helps, random where it must be.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use domain::{
    id::{SandboxId, SnapshotId},
    size::Resources,
    snapshot::SnapshotKey,
    time::Timestamp,
};
use sandbox::{
    backend::Sealed,
    host::Sources,
    spec::{SandboxSpec, Source},
};

/// A different sandbox id with each call.
pub fn sandbox_id() -> SandboxId {
    SandboxId::from_random(distinct_bytes())
}

/// A different snapshot with each call, under a key of its own.
pub fn sealed() -> Sealed {
    let mut key = [0x4b; 32];
    key[..16].copy_from_slice(&distinct_bytes());
    Sealed { id: SnapshotId::from_random(distinct_bytes()), key: SnapshotKey::from_random(key) }
}

/// 16 bytes that no other call returns, in this process or in another that runs
/// tests on this host now.
pub fn distinct_bytes() -> [u8; 16] {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0x5c; 16];
    bytes[4..8].copy_from_slice(&std::process::id().to_be_bytes());
    bytes[8..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    bytes
}

/// The real clock, and random bytes that differ with each call.
pub fn sources() -> Sources {
    Sources {
        clock: || Timestamp::from(SystemTime::now()),
        random: |buffer| {
            for chunk in buffer.chunks_mut(16) {
                chunk.copy_from_slice(&distinct_bytes()[16 - chunk.len()..]);
            }
        },
    }
}

/// An image that exists nowhere, for backends that read none.
pub fn image() -> domain::image::Image {
    use domain::image::{FileEntry, Files, Image, Manifest, digest::Digest, facts::Facts};
    let entry = || FileEntry { size: 1, sha256: Digest::of(b"x") };
    let manifest = Manifest {
        format: 1,
        name: "base".parse().expect("a valid name"),
        release: "bookworm".into(),
        kernel_release: "6.12".into(),
        source_date_epoch: 0,
        recipe: Digest::of(b"recipe"),
        tools: BTreeMap::new(),
        user: "user".into(),
        environment: BTreeMap::new(),
        files: Files { vmlinuz: entry(), modules: entry(), rootfs: entry() },
        egress_registries: Vec::new(),
        facts: Facts::default(),
        inputs: Vec::new(),
    };
    Image {
        name: manifest.name.clone(),
        digest: Digest::of(b"manifest"),
        kernel: PathBuf::from("vmlinuz"),
        modules: PathBuf::from("modules.cpio"),
        rootfs: PathBuf::from("rootfs.erofs"),
        manifest,
    }
}

/// A small sandbox from [`image`].
pub fn spec() -> SandboxSpec {
    SandboxSpec {
        image: image(),
        resources: Resources::of(domain::size::SizeClass::Small),
        source: Source::Template,
        disks: Vec::new(),
    }
}
