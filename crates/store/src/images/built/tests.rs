// Building for real, where mkfs.erofs and root are at hand.

use std::os::unix::fs::PermissionsExt as _;

use tar::{Builder, Header};
use tempfile::TempDir;

use super::*;
use crate::{
    archive::context::{Context, Section},
    images::fixture,
};

fn random(bytes: &mut [u8]) {
    bytes.fill(9);
}

/// An OCI layout with one file, and a base image to take the kernel from.
fn site() -> (TempDir, ImageStore, Blobs) {
    let (folder, images) = fixture::folder();
    fixture::install(folder.path(), "base", &fixture::key());
    let mut layer = Builder::new(Vec::new());
    let mut put = |name: &str, content: &str, mode| {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        layer.append_data(&mut header, name, content.as_bytes()).expect("appended");
    };
    put("bin/sh", "#!", 0o755);
    put("bin/su", "#!", 0o4755);
    let layer = layer.into_inner().expect("a tar file");
    let config = serde_json::to_vec(&serde_json::json!({
        "os": "linux", "architecture": "amd64", "rootfs": { "diff_ids": [Digest::of(&layer)] },
        "config": { "Env": ["A=b"] },
    }));
    let list = serde_json::json!([{ "Config": "c.json", "Layers": ["layer.tar"] }]);
    let mut saved = Builder::new(tempfile::tempfile().expect("a file"));
    for (name, bytes) in [
        ("manifest.json", serde_json::to_vec(&list).expect("JSON")),
        ("c.json", config.expect("JSON")),
        ("layer.tar", layer),
    ] {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        saved.append_data(&mut header, name, bytes.as_slice()).expect("appended");
    }
    let file = saved.into_inner().expect("a tar file");
    let context = Context::read(Section::whole(file).expect("a length")).expect("a context");
    (folder, images, Blobs::Saved(context))
}

/// U38, S7: an OCI image becomes an image whose inputs are on record and whose
/// files are checked like any other's.
#[test]
fn an_oci_image_becomes_an_image() {
    let (folder, images, blobs) = site();
    let base = images.get(&"base".parse().expect("a name")).expect("the base image");
    let oci = blobs.image(None).expect("an OCI image");
    let built = BuiltImages::open(folder.path().join("built"), random).expect("opened");
    let image = built.build(&oci, &blobs, &base).expect("built");
    assert_eq!(image.name, BuiltImages::name(&oci, &base));
    assert_eq!(image.manifest.release, RELEASE);
    assert_eq!(image.manifest.environment["A"], "b");
    assert!(image.manifest.facts.setuid.contains("/bin/su"));
    let recorded: Vec<_> = image.manifest.inputs.iter().map(|input| input.sha256).collect();
    for digest in [base.digest, oci.config, oci.digest, oci.layers[0].content] {
        assert!(recorded.contains(&digest));
    }
    // Made once; nothing half made stays.
    assert_eq!(built.build(&oci, &blobs, &base).expect("found").digest, image.digest);
    let names = fs::read_dir(folder.path().join("built")).expect("a folder");
    let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with(WORK)), "{names:?}");

    // The image holds beyond this process, and not beyond a change.
    let again = BuiltImages::open(folder.path().join("built"), random).expect("opened");
    assert_eq!(again.images().get(&image.name).expect("verified").digest, image.digest);
    let mut bytes = fs::read(&image.rootfs).expect("a file");
    bytes[2048] ^= 1;
    fs::write(&image.rootfs, bytes).expect("written");
    assert!(matches!(again.images().get(&image.name), Err(ImageError::Altered { .. })));
}

/// U38: the key of the installation is its own, and opens no other folder.
#[test]
fn the_local_key_is_private_and_trusted_in_its_folder_only() {
    let (folder, images, blobs) = site();
    let base = images.get(&"base".parse().expect("a name")).expect("the base image");
    let built = BuiltImages::open(folder.path().join("built"), random).expect("opened");
    let image = built.build(&blobs.image(None).expect("an image"), &blobs, &base).expect("built");
    let elsewhere = folder.path().join(image.name.as_str());
    fs::rename(image.rootfs.parent().expect("a folder"), elsewhere).expect("moved");
    assert!(matches!(images.get(&image.name), Err(ImageError::WrongKey { .. })));
    let key = folder.path().join("built").join(KEY);
    assert_eq!(fs::metadata(&key).expect("a key").permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("opened up");
    let opened = BuiltImages::open(folder.path().join("built"), random);
    assert!(matches!(opened, Err(ImageError::Exposed { .. })));
}
