// Layers that mean well and layers that do not, and images by their digests.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use super::{
    unpack::{Limits, Tree},
    *,
};
use crate::archive::context::Section;

/// One member of a layer that a test makes.
#[derive(Clone, Debug)]
enum Entry {
    File(&'static str, &'static str),
    Folder(&'static str),
    Link(&'static str, &'static str),
    Hard(&'static str, &'static str),
}

fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(1_000_000);
        let (name, kind, content, target) = match *entry {
            Entry::File(name, content) => (name, EntryType::Regular, content, ""),
            Entry::Folder(name) => (name, EntryType::Directory, "", ""),
            Entry::Link(name, target) => (name, EntryType::Symlink, "", target),
            Entry::Hard(name, target) => (name, EntryType::Link, "", target),
        };
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o640 });
        header.set_size(content.len() as u64);
        // By hand, because the builder refuses what a hostile one would write.
        let raw = header.as_gnu_mut().expect("a GNU header");
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        raw.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).expect("appended");
    }
    builder.into_inner().expect("a tar file")
}

struct Site {
    folder: TempDir,
}

impl Site {
    /// A folder with a root in it and a file beside it that must stay.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("root")).expect("a root");
        fs::write(folder.path().join("passwd"), "untouched").expect("a file beside");
        Self { folder }
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("root")
    }

    fn apply(&self, layers: &[&[Entry]]) -> Result<(), OciError> {
        let mut tree = Tree::open(&self.root(), Limits { members: 100, bytes: 10_000 })?;
        layers.iter().try_for_each(|layer| tree.apply(tar(layer).as_slice()))
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root().join(path)).ok()
    }

    /// Whether nothing outside the root was touched.
    fn is_sound(&self) -> bool {
        let names: Vec<_> = fs::read_dir(self.folder.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        let beside = fs::read_to_string(self.folder.path().join("passwd"));
        names.len() == 2 && beside.is_ok_and(|text| text == "untouched")
    }
}

use Entry::{File as F, Folder as D, Hard as H, Link as L};

/// U38: a later layer replaces, deletes and hides what lower ones have.
#[test]
fn layers_add_replace_and_delete() {
    let site = Site::new();
    site.apply(&[
        &[D("etc"), F("etc/a", "1"), F("etc/b", "1"), D("old"), F("old/x", "1"), F("dir/x", "1")],
        &[
            F("etc/a", "2"),
            F("etc/.wh.b", ""),
            F("old/new", "2"),
            F("old/.wh..wh..opq", ""),
            F(".wh.dir", ""),
            L("link", "/etc"),
            H("etc/hard", "etc/a"),
            F("deep/er/file", "2"),
        ],
    ])
    .expect("applied");
    assert_eq!(site.text("etc/a").as_deref(), Some("2"));
    assert_eq!(site.text("etc/b"), None);
    assert_eq!(site.text("old/x"), None);
    assert_eq!(site.text("old/new").as_deref(), Some("2"));
    assert!(!site.root().join("dir").exists());
    assert_eq!(fs::read_link(site.root().join("link")).expect("a link"), Path::new("/etc"));
    let file = fs::metadata(site.root().join("etc/hard")).expect("a file");
    assert_eq!((file.nlink(), file.mode() & 0o777, file.mtime()), (2, 0o640, 1_000_000));
    let made = fs::metadata(site.root().join("deep")).expect("a folder");
    assert_eq!(made.permissions().mode() & 0o777, 0o755);
    assert!(!site.root().join("etc/.wh.b").exists());
}

/// Writing through another name of a file would change a lower layer's twin.
#[test]
fn a_file_is_replaced_and_not_written_through() {
    let site = Site::new();
    site.apply(&[&[F("a", "1"), H("b", "a")], &[F("b", "2")]]).expect("applied");
    assert_eq!((site.text("a").as_deref(), site.text("b").as_deref()), (Some("1"), Some("2")));
    let site = Site::new();
    site.apply(&[&[L("a", "../passwd"), F("a", "2")]]).expect("applied");
    assert_eq!(site.text("a").as_deref(), Some("2"));
    assert!(site.is_sound());
}

/// Z-01, Z-02: names that leave the folder, and ways through links.
#[test]
fn nothing_is_written_outside() {
    let cases: &[&[Entry]] = &[
        &[F("../../../../tmp/pwn", "x")],
        &[F("/tmp/pwn", "x")],
        &[F("a/../../pwn", "x")],
        &[F("C:\\pwn", "x")],
        &[F("..\\pwn", "x")],
        &[L("x", "/etc"), F("x/passwd", "x")],
        &[L("x", ".."), F("x/passwd", "x")],
        &[L("x", "."), L("x/y", ".."), F("x/y/pwn", "x")],
        &[L("x", ".."), D("x/pwn")],
        &[L("x", ".."), L("x/pwn", "/etc")],
        &[L("x", ".."), H("y", "x/passwd"), F("y", "x")],
        &[L("x", ".."), F("x/.wh.passwd", "")],
        &[L("x", ".."), F("x/.wh..wh..opq", "")],
        &[H("y", "../passwd")],
        &[H("y", "/../passwd")],
        &[D("x"), H("y", "x")],
        &[F(".wh..", "")],
        &[F(".wh...", "")],
        &[D("a"), F("a/.wh...", "")],
        &[F(".wh.", "")],
        &[F("a/.wh..wh.b", "")],
        &[F("a", "x"), F("a/b", "x")],
    ];
    for case in cases {
        let site = Site::new();
        assert!(matches!(site.apply(&[case]), Err(OciError::Layer(_))), "{case:?}");
        assert!(site.is_sound(), "{case:?}");
        // The same in two layers, where the link is there before.
        let site = Site::new();
        let refused = case.iter().try_for_each(|one| site.apply(&[std::slice::from_ref(one)]));
        assert!(refused.is_err() && site.is_sound(), "{case:?}");
    }
}

/// U38: a link to itself, and one to the root, are no way out either.
#[test]
fn links_are_made_as_they_are_written() {
    let site = Site::new();
    site.apply(&[&[L("loop", "loop"), L("root", "/"), L("up", "../../..")]]).expect("applied");
    assert!(site.is_sound());
    assert_eq!(fs::read_link(site.root().join("up")).expect("a link"), Path::new("../../.."));
}

fn hostile() -> impl Strategy<Value = Entry> {
    let names = prop::sample::select(vec![
        "a",
        "a/b",
        "a/b/c",
        "x",
        "x/y",
        "x/passwd",
        "../passwd",
        "a/../x",
        "./a",
        "a/.wh.b",
        "a/.wh..wh..opq",
        ".wh.x",
        ".wh...",
        "a/.wh...",
        "x/.wh.passwd",
        "/a",
        "a//b",
        "..",
    ]);
    let targets = prop::sample::select(vec!["..", ".", "/", "a", "x", "../passwd", "a/b", "/etc"]);
    (names, targets, 0..4_u8).prop_map(|(name, target, kind)| match kind {
        0 => F(name, "x"),
        1 => D(name),
        2 => L(name, target),
        _ => H(name, target),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Z-01, Z-02: no sequence of members touches anything outside.
    #[test]
    fn no_layers_leave_the_folder(layers in prop::collection::vec(
        prop::collection::vec(hostile(), 1..8), 1..4))
    {
        let site = Site::new();
        for layer in &layers {
            // Refused or applied: only where it wrote is in question.
            let applied = site.apply(&[layer]);
            prop_assert!(site.is_sound(), "{:?}", layers);
            if applied.is_err() {
                break;
            }
        }
    }
}

/// An OCI layout as a tar file, from layers.
fn layout(layers: &[(Vec<u8>, Vec<u8>)], spoil: impl Fn(&str, Vec<u8>) -> Vec<u8>) -> Context {
    let mut blobs: Vec<(String, Vec<u8>)> = Vec::new();
    let mut blob = |what: &str, bytes: Vec<u8>| {
        let digest = Digest::of(&bytes);
        let size = bytes.len();
        blobs.push((format!("img/blobs/sha256/{}", digest.hex()), spoil(what, bytes)));
        serde_json::json!({ "mediaType": "x", "digest": digest, "size": size })
    };
    let described: Vec<_> = layers.iter().map(|(raw, _)| blob("layer", raw.clone())).collect();
    let ids: Vec<_> = layers.iter().map(|(_, content)| Digest::of(content)).collect();
    let config = serde_json::json!({
        "os": "linux", "architecture": "amd64", "rootfs": { "type": "layers", "diff_ids": ids },
        "config": { "Env": ["PATH=/bin", "A=b=c"], "User": "", "WorkingDir": "/srv" },
    });
    let config = blob("config", serde_json::to_vec(&config).expect("JSON"));
    let manifest = serde_json::json!({ "config": config, "layers": described });
    let mut manifest = blob("manifest", serde_json::to_vec(&manifest).expect("JSON"));
    manifest["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": "v1" });
    let index = serde_json::json!({ "manifests": [manifest] });
    blobs.push(("img/index.json".to_owned(), serde_json::to_vec(&index).expect("JSON")));
    context(&blobs)
}

fn context(files: &[(String, Vec<u8>)]) -> Context {
    let mut builder = Builder::new(tempfile::tempfile().expect("a file"));
    for (name, bytes) in files {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, bytes.as_slice()).expect("appended");
    }
    let file = builder.into_inner().expect("a tar file");
    Context::read(Section::whole(file).expect("a length")).expect("a context")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("compressed");
    encoder.finish().expect("compressed")
}

/// U38: layers of each compression; the digests of the image are kept.
#[test]
fn an_image_of_a_layout_is_checked_and_unpacked() {
    let content = tar(&[F("etc/a", "1")]);
    let zstd = ruzstd::encoding::compress_to_vec(
        content.as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    let layers =
        [(content.clone(), content.clone()), (gzip(&content), content.clone()), (zstd, content)];
    let blobs = Blobs::Layout(layout(&layers, |_, bytes| bytes), "img".to_owned());
    let image = blobs.image(Some("v1")).expect("an image");
    assert_eq!(image.layers.len(), 3);
    assert_eq!(image.environment[1], ("A".to_owned(), "b=c".to_owned()));
    assert_eq!((image.user.as_deref(), image.workdir.as_deref()), (None, Some("/srv")));
    let site = Site::new();
    blobs.unpack(&image, &site.root(), Limits::default()).expect("unpacked");
    assert_eq!(site.text("etc/a").as_deref(), Some("1"));
    assert!(matches!(blobs.image(Some("v2")), Err(OciError::Unusable(_))));
}

/// U38: whatever differs from its digest is refused, wherever it differs.
#[test]
fn an_image_that_was_changed_is_refused() {
    let content = tar(&[F("etc/a", "1")]);
    let flipped = |mut bytes: Vec<u8>| {
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        bytes
    };
    for changed in ["layer", "config", "manifest"] {
        let layers = [(content.clone(), content.clone())];
        let spoil = |what: &str, bytes| if what == changed { flipped(bytes) } else { bytes };
        let blobs = Blobs::Layout(layout(&layers, spoil), "img".to_owned());
        let site = Site::new();
        let used = blobs
            .image(None)
            .and_then(|image| blobs.unpack(&image, &site.root(), Limits::default()));
        assert!(used.is_err(), "{changed}");
    }
    // A blob that is right with content that is not what the configuration says.
    let layers = [(gzip(&content), tar(&[F("etc/a", "2")]))];
    let blobs = Blobs::Layout(layout(&layers, |_, bytes| bytes), "img".to_owned());
    let image = blobs.image(None).expect("documents that agree");
    let used = blobs.unpack(&image, &Site::new().root(), Limits::default());
    assert!(matches!(used, Err(OciError::Digest { .. })), "{used:?}");
}

/// U38: a layer that unfolds without end fills no disk.
#[test]
fn a_bomb_is_refused_within_its_bounds() {
    let zeros = std::io::repeat(0).take(64 << 20);
    let mut bomb = Vec::new();
    let mut encoder = flate2::write::GzEncoder::new(&mut bomb, flate2::Compression::best());
    std::io::copy(&mut { zeros }, &mut encoder).expect("compressed");
    encoder.finish().expect("compressed");
    let layers = [(bomb, vec![0; 64 << 20])];
    let blobs = Blobs::Layout(layout(&layers, |_, bytes| bytes), "img".to_owned());
    let image = blobs.image(None).expect("documents that agree");
    let bounds = Limits { members: 10, bytes: 1 << 20 };
    let used = blobs.unpack(&image, &Site::new().root(), bounds);
    assert!(matches!(used, Err(OciError::Layer(ArchiveError::TooLarge(_)))), "{used:?}");
}

/// U38: what `docker save` of an older version wrote.
#[test]
fn an_archive_of_docker_is_read() {
    let content = tar(&[F("etc/a", "1")]);
    let config = serde_json::json!({
        "os": "linux", "architecture": "amd64", "rootfs": { "diff_ids": [Digest::of(&content)] },
    });
    let list = serde_json::json!([
        { "Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l/layer.tar"] },
    ]);
    let files = [
        ("manifest.json".to_owned(), serde_json::to_vec(&list).expect("JSON")),
        ("c.json".to_owned(), serde_json::to_vec(&config).expect("JSON")),
        ("l/layer.tar".to_owned(), content),
    ];
    let blobs = Blobs::Saved(context(&files));
    let image = blobs.image(Some("a:1")).expect("an image");
    let site = Site::new();
    blobs.unpack(&image, &site.root(), Limits::default()).expect("unpacked");
    assert_eq!(site.text("etc/a").as_deref(), Some("1"));
    assert!(blobs.image(Some("a:2")).is_err());
}
