//! Keys and templates on disk, without a machine.

use std::{os::fd::AsFd as _, path::PathBuf};

use domain::{
    image::{FileEntry, Files, Image, Manifest, facts::Facts},
    size::{Resources, SizeClass},
};

use sandbox::spec::Source;

use super::{disk::Captured, *};

fn spec(image: &[u8], kernel: &[u8], size: SizeClass) -> SandboxSpec {
    let entry = |content: &[u8]| FileEntry { size: 1, sha256: Digest::of(content) };
    let files =
        Files { vmlinuz: entry(kernel), modules: entry(b"modules"), rootfs: entry(b"rootfs") };
    let name: domain::image::ImageName = "base".parse().unwrap();
    let manifest = Manifest {
        format: 1,
        name: name.clone(),
        release: String::new(),
        kernel_release: String::new(),
        source_date_epoch: 0,
        recipe: Digest::of(b"recipe"),
        tools: Default::default(),
        user: "user".into(),
        environment: Default::default(),
        egress_registries: Default::default(),
        files,
        facts: Facts::default(),
        inputs: Vec::new(),
    };
    let digest = Digest::of(image);
    let path = PathBuf::new();
    let (kernel, modules, rootfs) = (path.clone(), path.clone(), path);
    let image = Image { name, digest, kernel, modules, rootfs, manifest };
    SandboxSpec {
        image,
        resources: Resources::of(size),
        source: Source::Template,
        disks: Vec::new(),
    }
}

#[test]
fn everything_that_decides_the_content_changes_the_key() {
    let (qemu, guest) = (Digest::of(b"qemu"), Digest::of(b"guest"));
    let base = spec(b"image", b"kernel", SizeClass::Small);
    let mut keys = vec![
        key(&base, Accelerator::Tcg, qemu, guest),
        key(&base, Accelerator::Kvm, qemu, guest),
        key(&base, Accelerator::Tcg, guest, guest),
        key(&base, Accelerator::Tcg, qemu, qemu),
        key(&spec(b"other", b"kernel", SizeClass::Small), Accelerator::Tcg, qemu, guest),
        key(&spec(b"image", b"other", SizeClass::Small), Accelerator::Tcg, qemu, guest),
        key(&spec(b"image", b"kernel", SizeClass::Medium), Accelerator::Tcg, qemu, guest),
    ];
    let mut fuller = base.clone();
    fuller.resources.disk_mib += 1;
    keys.push(key(&fuller, Accelerator::Tcg, qemu, guest));
    assert_eq!(keys[0], key(&base.clone(), Accelerator::Tcg, qemu, guest));
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count);
}

/// A captured machine of 64 pages: page 3 and 4 used, page 9 zeros.
fn captured() -> Captured {
    let memory = memfd::memory("test", 64 * 4096).unwrap();
    rustix::io::pwrite(&memory, &[7; 2 * 4096], 3 * 4096).unwrap();
    rustix::io::pwrite(&memory, &[0; 4096], 9 * 4096).unwrap();
    Captured { memory, state: memfd::sealed("test", &[b"devices"]).unwrap(), tsc_khz: 2_000_000 }
}

fn kernel(folder: &std::path::Path) -> PathBuf {
    let mut head = vec![0; 64 * 512];
    head[0x202..0x206].copy_from_slice(b"HdrS");
    let path = folder.join("kernel");
    fs::write(&path, head).unwrap();
    path
}

fn made_for(image: &str, guest: &str) -> MadeFor {
    let digest = |text: &str| Digest::of(text.as_bytes());
    MadeFor {
        image_name: image.split('@').next().unwrap_or_default().to_owned(),
        image: digest(image),
        guest: digest(guest),
        qemu: digest("qemu"),
    }
}

fn store(folder: &std::path::Path, key: Digest) {
    disk::store(folder, key, &captured(), &made_for("base", "guest")).unwrap();
}

#[test]
fn a_template_comes_back_from_disk_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (key, kernel) = (Digest::of(b"key"), kernel(folder.path()));
    let open = |tsc_khz| disk::open(folder.path(), key, tsc_khz, &kernel).unwrap();
    let has = |tsc_khz| disk::has(folder.path(), key, tsc_khz).unwrap();
    assert!(open(2_000_000).is_none() && !has(2_000_000));
    store(folder.path(), key);
    let disk::Found { memory, used_bytes, fill, .. } = open(2_000_000).unwrap();
    assert!(!memfd::is_sealed(memory.as_fd()));
    fill.run().unwrap();
    let mut content = vec![1; 64 * 4096];
    rustix::io::pread(&memory, &mut content, 0).unwrap();
    assert!(content[3 * 4096..5 * 4096].iter().all(|byte| *byte == 7));
    assert_eq!(content.iter().filter(|byte| **byte != 0).count(), 2 * 4096);
    // Only what is used takes memory.
    assert_eq!(used_bytes, 2 * 4096);
    assert_eq!(rustix::io::pwrite(&memory, b"x", 0), Err(rustix::io::Errno::PERM));

    // A little drift of the clock is fine; another machine's is not.
    assert!(open(2_000_100).is_some() && has(2_000_100));
    assert!(open(2_100_000).is_none() && !has(2_100_000));
}

/// What is damaged is found before a machine runs, and does not stay.
#[test]
fn a_damaged_template_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (key, kernel) = (Digest::of(b"key"), kernel(folder.path()));
    let place = folder.path().join(super::name(key));
    for (name, content) in [("memory", "x"), ("state", "y"), ("manifest.json", "{"), ("memory", "")]
    {
        store(folder.path(), key);
        fs::write(place.join(name), content).unwrap();
        assert!(disk::open(folder.path(), key, 2_000_000, &kernel).unwrap().is_none(), "{name}");
    }
    store(folder.path(), key);
    let mut bytes = fs::read(place.join("memory")).unwrap();
    bytes[4097] ^= 1;
    fs::write(place.join("memory"), bytes).unwrap();
    let found = disk::open(folder.path(), key, 2_000_000, &kernel).unwrap().unwrap();
    assert!(found.fill.run().is_err());
    assert!(!memfd::is_sealed(found.memory.as_fd()));
    assert!(!place.exists());
}

#[test]
fn the_least_wanted_templates_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<_> = (0..4u8).map(|n| Digest::of(&[n])).collect();
    for (age, key) in (0..).zip(&keys) {
        store(folder.path(), *key);
        // Set, because the clock of a file system may stand still for so long.
        let manifest = folder.path().join(name(*key)).join("manifest.json");
        let wanted = std::time::UNIX_EPOCH + std::time::Duration::from_secs(age);
        fs::File::options().append(true).open(manifest).unwrap().set_modified(wanted).unwrap();
    }
    let kernel = kernel(folder.path());
    fs::rename(&kernel, folder.path().join("kernel.bin")).unwrap();
    let kernel = folder.path().join("kernel.bin");
    disk::open(folder.path(), keys[0], 2_000_000, &kernel).unwrap().unwrap();
    disk::forget_excess(folder.path(), 2, &made_for("base", "guest")).unwrap();
    let there = |key: &Digest| folder.path().join(name(*key)).exists();
    assert_eq!(keys.iter().map(there).collect::<Vec<_>>(), [true, false, false, true]);
}

/// What no current version can use goes first, whenever it was wanted.
#[test]
fn templates_of_other_versions_are_forgotten_first() {
    let folder = tempfile::tempdir().unwrap();
    let made = [
        made_for("base", "guest"),
        made_for("other", "guest"),
        made_for("base", "old guest"),
        made_for("base@old", "guest"),
        made_for("base", "older guest"),
    ];
    let keys: Vec<_> = (0..5u8).map(|n| Digest::of(&[n])).collect();
    for ((age, key), made_for) in (0..).zip(&keys).zip(&made) {
        disk::store(folder.path(), *key, &captured(), made_for).unwrap();
        let manifest = folder.path().join(name(*key)).join("manifest.json");
        let wanted = std::time::UNIX_EPOCH + std::time::Duration::from_secs(age);
        fs::File::options().append(true).open(manifest).unwrap().set_modified(wanted).unwrap();
    }
    let there = || keys.iter().map(|key| folder.path().join(name(*key)).exists());
    disk::forget_excess(folder.path(), 16, &made[0]).unwrap();
    assert_eq!(there().collect::<Vec<_>>(), [true, true, false, true, true]);
    disk::forget_excess(folder.path(), 2, &made[0]).unwrap();
    assert_eq!(there().collect::<Vec<_>>(), [true, true, false, false, false]);
}
