//! What the folder of images promises, tried on small images.

use std::{fs, io::Write, path::Path};

use domain::image::{ImageFile, ImageName, MANIFEST, SIGNATURE};
use ed25519_dalek::{Signer, SigningKey};
use flate2::{Compression, write::GzEncoder};
use tar::EntryType;

use super::{
    ImageError, ImageStore,
    fixture::{Member, archive, content, file, folder, install, key, manifest, signed_archive},
};

fn base() -> ImageName {
    "base".parse().expect("a name")
}

/// The archive of a sound image.
fn sound() -> Vec<u8> {
    let contents = ImageFile::ALL.map(|it| (it.name(), content(it)));
    signed_archive(contents.iter().map(|(name, content)| file(name, content)))
}

/// Everything below `path`, for "nothing was left".
fn tree(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| !name.ends_with(".lock"))
        .collect();
    names.sort();
    names
}

#[track_caller]
fn check_refused(archive: &[u8], what: &str) {
    let (folder, store) = folder();
    let before = tree(folder.path());
    let refused = store.import(archive);
    let archive = matches!(refused, Err(ImageError::Malformed { .. } | ImageError::NotAnArchive));
    assert!(archive, "{what}: {refused:?}");
    assert_eq!(tree(folder.path()), before, "{what}: nothing is left");
}

/// S7
#[test]
fn a_sound_image_is_found_under_its_name() {
    let (folder, store) = folder();
    install(folder.path(), "base", &key());
    let image = store.get(&base()).expect("sound");
    assert_eq!(image.rootfs, folder.path().join("base/rootfs.erofs"));
    assert_eq!(image.digest, domain::image::digest::Digest::of(&manifest("base")));
    assert!(matches!(
        store.get(&"other".parse().expect("a name")),
        Err(ImageError::NotFound { .. })
    ));
}

/// S7
#[test]
fn one_changed_bit_in_any_file_is_noticed() {
    for changed in ImageFile::ALL {
        let (folder, store) = folder();
        install(folder.path(), "base", &key());
        store.get(&base()).expect("sound before");
        let path = folder.path().join("base").join(changed.name());
        let mut bytes = fs::read(&path).expect("readable");
        bytes[500] ^= 1;
        fs::write(&path, bytes).expect("written");
        let altered = store.get(&base());
        assert!(
            matches!(altered, Err(ImageError::Altered { file, .. }) if file == changed.name()),
            "{changed:?}: {altered:?}"
        );
    }
}

/// S7
#[test]
fn a_change_after_a_stamp_was_written_is_noticed() {
    let (folder, store) = folder();
    install(folder.path(), "base", &key());
    // Old enough for a stamp: the time is given, not waited for.
    let image = store.get(&base()).expect("sound");
    let stamp = folder.path().join(".base.stamp");
    let files = ImageFile::ALL.map(|file| {
        let metadata = fs::metadata(folder.path().join("base").join(file.name()));
        (file.name().to_owned(), super::Identity::of(&metadata.expect("there")))
    });
    let found = super::Stamp { manifest: image.digest, files: files.into() };
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    store.stamps.remember(&base(), found, later);
    assert!(stamp.exists());

    let path = folder.path().join("base/vmlinuz");
    let modified = fs::metadata(&path).expect("there").modified().expect("a time");
    let mut bytes = content(ImageFile::Kernel);
    bytes[0] ^= 1;
    fs::write(&path, bytes).expect("written");
    let file = fs::File::options().write(true).open(&path).expect("opens");
    file.set_modified(modified).expect("the time is set back");
    let fresh = ImageStore::open(folder.path()).expect("opens");
    for store in [store, fresh] {
        assert!(matches!(store.get(&base()), Err(ImageError::Altered { .. })));
    }
}

/// S7
#[test]
fn an_image_needs_a_signature_by_a_trusted_key_over_its_own_name() {
    let (folder, store) = folder();
    install(folder.path(), "base", &SigningKey::from_bytes(&[8; 32]));
    assert!(matches!(store.get(&base()), Err(ImageError::WrongKey { .. })));

    fs::remove_file(folder.path().join("base").join(SIGNATURE)).expect("removed");
    assert!(matches!(store.get(&base()), Err(ImageError::Unsigned { .. })));
    fs::write(folder.path().join("base").join(SIGNATURE), b"short").expect("written");
    assert!(matches!(store.get(&base()), Err(ImageError::Unsigned { .. })));

    install(folder.path(), "other", &key());
    fs::remove_dir_all(folder.path().join("base")).expect("removed");
    fs::rename(folder.path().join("other"), folder.path().join("base")).expect("renamed");
    assert!(matches!(store.get(&base()), Err(ImageError::Malformed { .. })));

    fs::remove_file(folder.path().join("trusted.pub")).expect("removed");
    assert!(matches!(store.get(&base()), Err(ImageError::NoTrustedKey { .. })));
}

/// S7
#[test]
fn a_link_is_not_a_file_of_an_image() {
    let (folder, store) = folder();
    install(folder.path(), "base", &key());
    let path = folder.path().join("base/vmlinuz");
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&path, &elsewhere).expect("moved");
    std::os::unix::fs::symlink(&elsewhere, &path).expect("linked");
    assert!(matches!(store.get(&base()), Err(ImageError::Altered { .. })));
}

#[test]
fn an_image_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    for exposed in ["base", "base/rootfs.erofs"] {
        let (folder, store) = folder();
        install(folder.path(), "base", &key());
        let path = folder.path().join(exposed);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("set");
        assert!(matches!(store.get(&base()), Err(ImageError::Exposed { .. })), "{exposed}");
    }
}

#[test]
fn a_listing_shows_sound_and_broken_images() {
    let (folder, store) = folder();
    install(folder.path(), "base", &key());
    install(folder.path(), "alien", &SigningKey::from_bytes(&[8; 32]));
    let listed = store.list().expect("listed");
    let names: Vec<_> = listed.iter().map(|it| (it.name.as_str(), it.image.is_ok())).collect();
    assert_eq!(names, [("alien", false), ("base", true)]);
}

/// U38
#[test]
fn an_exported_image_imports_as_the_same_image() {
    let (folder, store) = folder();
    install(folder.path(), "base", &key());
    let original = store.get(&base()).expect("sound");
    let mut plain = Vec::new();
    store.export(&base(), &mut plain).expect("exported");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain).expect("compressed");
    for archive in [plain, gzip.finish().expect("compressed")] {
        let (_folder, other) = self::folder();
        let imported = other.import(archive.as_slice()).expect("imported");
        assert_eq!(imported.digest, original.digest);
        // Again, over the first.
        other.import(archive.as_slice()).expect("imported again");
    }
}

#[test]
fn an_image_in_use_is_not_replaced() {
    let (_folder, store) = folder();
    store.import(sound().as_slice()).expect("imported");
    let held = store.hold(&base()).expect("held");
    assert!(matches!(store.import(sound().as_slice()), Err(ImageError::InUse { .. })));
    drop(held);
    store.import(sound().as_slice()).expect("imported once it is free");
}

/// S7; cases Z-01 and Z-02
#[test]
fn a_hostile_member_refuses_the_whole_archive() {
    let kernel = content(ImageFile::Kernel);
    let names: [&[u8]; 8] = [
        b"../../../../tmp/pwn",
        b"/tmp/pwn",
        b"a/../../pwn",
        b"C:\\pwn",
        b"..\\pwn",
        b"./vmlinuz",
        b"vmlinuz/x",
        b"trusted.pub",
    ];
    for name in names {
        let hostile = Member { name, kind: EntryType::Regular, link: "", content: &kernel };
        let what = String::from_utf8_lossy(name).into_owned();
        check_refused(&signed_archive([file("vmlinuz", &kernel), hostile]), &what);
    }
    let kinds = [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::Directory,
        EntryType::GNUSparse,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
        EntryType::GNULongName,
    ];
    for kind in kinds {
        let hostile = Member { name: b"vmlinuz", kind, link: "/etc", content: &[] };
        check_refused(&signed_archive([hostile, file("vmlinuz", &kernel)]), &format!("{kind:?}"));
    }
}

/// S7
#[test]
fn an_archive_of_other_files_than_the_manifest_lists_is_refused() {
    let [kernel, modules, rootfs] = ImageFile::ALL.map(content);
    let longer = [kernel.as_slice(), b"x"].concat();
    check_refused(&signed_archive([file("vmlinuz", &longer)]), "longer");
    check_refused(&signed_archive([file("vmlinuz", &kernel[1..])]), "shorter");
    let twice = [file("vmlinuz", &kernel), file("vmlinuz", &kernel)];
    check_refused(&signed_archive(twice), "twice");
    let missing = [file("vmlinuz", &kernel), file("modules.cpio", &modules)];
    check_refused(&signed_archive(missing), "missing");
    check_refused(&sound()[..sound().len() / 2], "cut short");
    check_refused(&[], "empty");
    check_refused(&[0x1f, 0x8b, 0, 1, 2], "not gzip");
    check_refused(&archive([file("vmlinuz", &kernel)]), "no manifest first");

    let mut altered = rootfs.clone();
    altered[9] ^= 1;
    let (folder, store) = folder();
    let altered = signed_archive([file("rootfs.erofs", &altered)]);
    assert!(matches!(store.import(altered.as_slice()), Err(ImageError::Altered { .. })));
    assert_eq!(tree(folder.path()), ["trusted.pub"]);
}

/// S7
#[test]
fn an_archive_signed_by_a_stranger_writes_nothing() {
    let manifest = manifest("base");
    let stranger = SigningKey::from_bytes(&[8; 32]).sign(&manifest).to_bytes();
    let (folder, store) = folder();
    let archive = archive([file(MANIFEST, &manifest), file(SIGNATURE, &stranger)]);
    assert!(matches!(store.import(archive.as_slice()), Err(ImageError::WrongKey { .. })));
    assert_eq!(tree(folder.path()), ["trusted.pub"]);
}
