//! Snapshots on disk, of a process that is its own machine.

use std::{fs, os::fd::AsFd as _};

use domain::{
    image::digest::Digest,
    size::{Resources, SizeClass},
    snapshot::SnapshotKey,
};

use super::*;
use crate::qemu::{
    command::Accelerator,
    memory::{Memory, PAGE, tests::Mapped},
};

/// 512 MiB, of which some pages are used.
struct Rig {
    folder: tempfile::TempDir,
    sealed: Sealed,
    expected: Vec<(usize, u8)>,
}

struct Contents {
    memory: Arc<OwnedFd>,
    devices: Vec<u8>,
}

fn bound() -> Bound {
    Bound::for_test(Accelerator::Tcg, Resources::of(SizeClass::Small), Digest::of(b"qemu"))
}

impl Rig {
    /// A snapshot whose memory takes several pieces.
    fn written() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sealed =
            Sealed { id: SnapshotId::from_random([1; 16]), key: SnapshotKey::from_random([9; 32]) };
        let (of_file, own): (Vec<_>, Vec<_>) =
            ((1000..1700).collect(), (1500..2100).chain([131_071]).collect());
        let mapped = Mapped::new(131_072, &of_file, &own);
        write(folder.path(), &sealed, &mapped.memory).finish().unwrap();
        let expected = (1000..1500).map(|page| (page, 1)).chain(own.iter().map(|page| (*page, 2)));
        Self { folder, sealed, expected: expected.collect() }
    }

    fn read(&self, key: &SnapshotKey) -> io::Result<Contents> {
        let found = disk::manifest(self.folder.path(), &self.sealed.id)?;
        let (manifest, text) = found.ok_or(io::ErrorKind::NotFound)?;
        let found = disk::open(self.folder.path(), key, &manifest, &text)?;
        found.fill.run()?;
        Ok(Contents { memory: found.memory, devices: found.devices })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(self.sealed.id.as_str()).join(name)
    }

    /// Whether it is refused after `change` was made to a file.
    fn refuses(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let good = fs::read(self.file(name)).unwrap();
        let mut bad = good.clone();
        change(&mut bad);
        assert!(bad != good, "nothing was changed");
        fs::write(self.file(name), bad).unwrap();
        let refused = self.read(&self.sealed.key).is_err();
        fs::write(self.file(name), good).unwrap();
        assert!(self.read(&self.sealed.key).is_ok());
        refused
    }
}

fn write(folder: &Path, sealed: &Sealed, memory: &Memory) -> disk::Draft {
    disk::write(folder, sealed, bound(), memory, b"devices".to_vec()).unwrap()
}

/// S33
#[test]
fn what_was_captured_comes_back() {
    let rig = Rig::written();
    let contents = rig.read(&rig.sealed.key).unwrap();
    assert_eq!(contents.devices, b"devices");
    assert!(memfd::is_sealed(contents.memory.as_fd()));
    let used = memfd::used_bytes(contents.memory.as_fd()).unwrap();
    assert_eq!(used, (rig.expected.len() * PAGE) as u64);
    for (page, byte) in &rig.expected {
        let mut found = [0; PAGE];
        rustix::io::pread(&contents.memory, &mut found, (page * PAGE) as u64).unwrap();
        assert!(found.iter().all(|found| found == byte), "page {page}");
    }
}

/// S49, U40: without its key, or changed in any way, a snapshot does not load.
#[test]
fn what_was_changed_or_has_another_key_is_refused() {
    let rig = Rig::written();
    assert!(rig.read(&SnapshotKey::from_random([8; 32])).is_err());
    let piece = 256 * PAGE + cipher::OVERHEAD;
    for name in ["memory", "index"] {
        for at in [0, 1, 2] {
            assert!(rig.refuses(name, |bytes| {
                let at = at * (bytes.len() - 1) / 2;
                bytes[at] ^= 0x40;
            }));
        }
        assert!(rig.refuses(name, |bytes| bytes.truncate(bytes.len() - 1)), "{name} cut");
        assert!(rig.refuses(name, |bytes| bytes.truncate(0)), "{name} empty");
        assert!(rig.refuses(name, |bytes| bytes.push(0)), "{name} longer");
    }
    assert!(rig.refuses("memory", |bytes| {
        let (one, rest) = bytes.split_at_mut(piece);
        one.swap_with_slice(&mut rest[..piece]);
    }));
    assert!(rig.refuses("memory", |bytes| bytes.copy_within(piece..2 * piece, 0)));
    // What can be read by anyone cannot be changed by anyone.
    assert!(rig.refuses("manifest.json", |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replace("\"tsc_khz\":1000", "\"tsc_khz\":1001").into_bytes();
    }));
}

/// S49: what a page held is nowhere in the files.
#[test]
fn no_page_is_in_the_files() {
    let rig = Rig::written();
    for name in ["memory", "index", "manifest.json"] {
        let bytes = fs::read(rig.file(name)).unwrap();
        for byte in [1, 2] {
            assert!(!bytes.windows(24).any(|part| part == [byte; 24]), "{name}");
        }
    }
}

/// S49: a second attempt under one key shares nothing with the first.
#[test]
fn two_attempts_never_seal_alike() {
    let rig = Rig::written();
    let first = fs::read(rig.file("memory")).unwrap();
    let mapped = Mapped::new(131_072, &(1000..1700).collect::<Vec<_>>(), &[]);
    write(rig.folder.path(), &rig.sealed, &mapped.memory).finish().unwrap();
    let second = fs::read(rig.file("memory")).unwrap();
    let blocks = |bytes: &[u8]| bytes.as_chunks::<16>().0.to_vec();
    let first: std::collections::HashSet<_> = blocks(&first).into_iter().collect();
    assert!(!blocks(&second).iter().any(|block| first.contains(block)));
}

/// K14: what is half-written is listed, is no snapshot, and goes.
#[test]
fn a_half_written_snapshot_is_none_and_can_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let sealed =
        Sealed { id: SnapshotId::from_random([2; 16]), key: SnapshotKey::from_random([9; 32]) };
    let mapped = Mapped::new(131_072, &[1], &[2]);
    let draft = write(folder.path(), &sealed, &mapped.memory);
    assert_eq!(disk::list(folder.path()).unwrap(), std::slice::from_ref(&sealed.id));
    assert!(disk::manifest(folder.path(), &sealed.id).unwrap().is_none());
    drop(draft);
    disk::forget(folder.path(), &sealed.id).unwrap();
    assert_eq!(disk::list(folder.path()).unwrap(), []);
    disk::forget(folder.path(), &sealed.id).unwrap();
}

/// A removal that was cut short is listed and goes on.
#[test]
fn a_half_removed_snapshot_is_none_and_can_be_forgotten() {
    let rig = Rig::written();
    let (folder, id) = (rig.folder.path(), &rig.sealed.id);
    fs::rename(folder.join(id.as_str()), folder.join(format!("{id}.gone"))).unwrap();
    assert_eq!(disk::list(folder).unwrap(), std::slice::from_ref(id));
    assert!(disk::manifest(folder, id).unwrap().is_none());
    disk::forget(folder, id).unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}

/// A page that the machine emptied is empty, also where its file has content.
#[test]
fn an_emptied_page_stays_empty() {
    let folder = tempfile::tempdir().unwrap();
    let sealed =
        Sealed { id: SnapshotId::from_random([3; 16]), key: SnapshotKey::from_random([9; 32]) };
    let mapped = Mapped::new(131_072, &[7, 8], &[7]);
    mapped.fill(7, 0);
    let captured = write(folder.path(), &sealed, &mapped.memory).finish().unwrap();
    assert_eq!(captured.memory_bytes, PAGE as u64);
    let (manifest, text) = disk::manifest(folder.path(), &sealed.id).unwrap().unwrap();
    let found = disk::open(folder.path(), &sealed.key, &manifest, &text).unwrap();
    found.fill.run().unwrap();
    let mut pages = [0; 2 * PAGE];
    rustix::io::pread(&found.memory, &mut pages, 7 * PAGE as u64).unwrap();
    assert!(pages[..PAGE].iter().all(|byte| *byte == 0));
    assert!(pages[PAGE..].iter().all(|byte| *byte == 1));
}

/// What writing and opening cost beside a plain copy, for whoever looks. Other
/// sizes in MiB can be asked for with `COLDFRAME_TEST_CAPTURE_MIB=64,256,1024`.
#[test]
fn what_is_used_decides_what_it_costs() {
    use std::io::Write as _;
    let sizes = std::env::var("COLDFRAME_TEST_CAPTURE_MIB").unwrap_or("64".to_owned());
    for mib in sizes.split(',').map(|size| size.parse::<usize>().unwrap()) {
        let pages = mib * 256;
        let folder = tempfile::tempdir().unwrap();
        let sealed =
            Sealed { id: SnapshotId::from_random([4; 16]), key: SnapshotKey::from_random([9; 32]) };
        // A machine of four times the size, used here and there.
        let own: Vec<_> = (0..pages).map(|page| page / 64 * 256 + page % 64).collect();
        let mapped = Mapped::new(4 * pages, &[], &own);

        let begun = Instant::now();
        let draft = disk::write(
            folder.path(),
            &sealed,
            Bound::for_test(
                Accelerator::Tcg,
                Resources::explicit(1, 4 * u32::try_from(mib).unwrap()).unwrap(),
                Digest::of(b"qemu"),
            ),
            &mapped.memory,
            Vec::new(),
        );
        let draft = draft.unwrap();
        let still = begun.elapsed();
        let captured = draft.finish().unwrap();
        let capture = begun.elapsed();
        drop(mapped);
        assert_eq!(captured.memory_bytes, (pages * PAGE) as u64);

        let begun = Instant::now();
        let mut plain = fs::File::create(folder.path().join("plain")).unwrap();
        let block = vec![3; 1 << 20];
        (0..mib).for_each(|_| plain.write_all(&block).unwrap());
        plain.sync_all().unwrap();
        let copy = begun.elapsed();

        let (manifest, text) = disk::manifest(folder.path(), &sealed.id).unwrap().unwrap();
        let begun = Instant::now();
        disk::open(folder.path(), &sealed.key, &manifest, &text).unwrap().fill.run().unwrap();
        let load = begun.elapsed();
        println!(
            "{mib} MiB: still {still:?}, captured {capture:?} ({:.2} of a plain copy, {copy:?}), \
             loaded {load:?}",
            capture.as_secs_f64() / copy.as_secs_f64(),
        );
    }
}
