//! Files, in and out.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
};

use domain::image::digest::Digest;

use crate::{service::Service, site::left_by};

/// The size of a file that is large against every buffer: 512 MiB, or 2 GiB.
fn large() -> u64 {
    crate::site::full(512 << 20, 2 << 30)
}

/// A file of `length` bytes that repeat too slowly for a lost piece to hide.
fn write_large(path: &Path, length: u64) {
    let mut file = File::create(path).expect("made");
    let mut block = vec![0_u8; 1 << 20];
    for n_block in 0..length >> 20 {
        for (place, byte) in block.iter_mut().enumerate().step_by(64) {
            *byte = (n_block ^ (place as u64 >> 6)).to_le_bytes()[0];
        }
        block[..8].copy_from_slice(&n_block.to_le_bytes());
        file.write_all(&block).expect("written");
    }
}

fn digest(path: &Path) -> String {
    let output = std::process::Command::new("sha256sum").arg(path).output().expect("runs");
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a digest").to_owned()
}

/// S90, and a name with everything in it that breaks programs.
#[test]
fn a_file_comes_back_as_it_went_whatever_its_name() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let folder = tempfile::tempdir().expect("folder");
    let content: Vec<u8> = (0..=255).cycle().take(100_003).collect();
    let name = "a b\n%2e&x=\u{e9}?#";
    let here = folder.path().join(name);
    fs::write(&here, &content).expect("written");
    let there = format!("{sandbox}:/workspace/{name}");
    service.ok(&["sandbox", "cp", here.to_str().expect("text"), &there]);
    let back = folder.path().join("back");
    service.ok(&["sandbox", "cp", &there, back.to_str().expect("text")]);
    assert!(fs::read(&back).expect("read") == content);
    let list = service.shell(&sandbox, "ls -b /workspace");
    assert_eq!(list.text(), "a\\ b\\n%2e&x=\u{e9}?#\n");
    // Into a folder, under its own name.
    service.ok(&["sandbox", "cp", &there, folder.path().to_str().expect("text")]);
    service.ok(&["sandbox", "cp", back.to_str().expect("text"), &format!("{sandbox}:/tmp")]);
    assert_eq!(service.shell(&sandbox, "wc -c < /tmp/back").text(), "100003\n");
}

#[test]
fn a_folder_comes_back_without_its_links() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let folder = tempfile::tempdir().expect("folder");
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("deep/er")).expect("made");
    fs::create_dir(tree.join("empty")).expect("made");
    fs::write(tree.join("deep/er/file"), "x").expect("written");
    fs::write(tree.join("run.sh"), "#!/bin/sh\necho ran\n").expect("written");
    fs::set_permissions(tree.join("run.sh"), fs::Permissions::from_mode(0o755)).expect("mode");
    std::os::unix::fs::symlink("/etc/hostname", tree.join("link")).expect("linked");
    let there = format!("{sandbox}:/workspace/tree");
    let arguments = ["sandbox", "cp", tree.to_str().expect("text"), &there];
    let left = left_by(&mut service.client(&arguments), None);
    assert_eq!(left.code, Some(0), "{left:?}");
    assert!(left.stderr.contains("link"), "{left:?}");
    let look = "cd /workspace/tree && find . | sort | tr '\\n' ' ' && ./run.sh";
    let found = service.shell(&sandbox, look);
    assert_eq!(found.text(), ". ./deep ./deep/er ./deep/er/file ./empty ./run.sh ran\n");
    // What comes out may not lead out: a link to a file of ours is not followed.
    service.shell(
        &sandbox,
        "ln -s /etc/shadow /workspace/tree/deep/trap; mkfifo /workspace/tree/pipe",
    );
    let back = folder.path().join("back");
    let arguments = ["sandbox", "cp", "--json", &there, back.to_str().expect("text")];
    let left = left_by(&mut service.client(&arguments), None);
    assert_eq!(left.code, Some(0), "{left:?}");
    let done: serde_json::Value = serde_json::from_str(left.text()).expect("JSON");
    assert_eq!((&done["files"], &done["bytes"]), (&2.into(), &20.into()));
    assert_eq!(done["skipped"].as_array().map(Vec::len), Some(2), "{done}");
    assert_eq!(fs::read_to_string(back.join("deep/er/file")).expect("read"), "x");
    assert!(back.join("empty").is_dir());
    assert_eq!(
        fs::metadata(back.join("run.sh")).expect("there").permissions().mode() & 0o777,
        0o755
    );
    assert!(fs::symlink_metadata(back.join("deep/trap")).is_err());
}

/// A folder is copied as `cp -r` copies it, both ways.
#[test]
fn a_second_copy_of_a_folder_is_nested_and_its_content_is_not() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let folder = tempfile::tempdir().expect("folder");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("file"), "1").expect("written");
    let here = tree.to_str().expect("text");
    let contents = format!("{here}/.");
    let inside = |path: &str| format!("{sandbox}:/workspace/{path}");
    for (source, to) in [
        (here, "a"),
        (here, "a"),
        (here, "b/"),
        (contents.as_str(), "c"),
        (contents.as_str(), "c/"),
    ] {
        service.ok(&["sandbox", "cp", source, &inside(to)]);
    }
    let found = service.shell(&sandbox, "cd /workspace && find -type f | sort | tr '\\n' ' '");
    assert_eq!(found.text(), "./a/file ./a/tree/file ./b/file ./c/file ");
    let back = folder.path().join("back");
    let there = back.to_str().expect("text");
    for source in ["c", "c", "c/."] {
        service.ok(&["sandbox", "cp", &inside(source), there]);
    }
    assert!(back.join("file").is_file() && back.join("c/file").is_file());
    assert_eq!(fs::read_dir(&back).expect("read").count(), 2);
    assert_eq!(fs::read_dir(back.join("c")).expect("read").count(), 1);
}

#[test]
fn standard_streams_are_files_too() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let there = format!("{sandbox}:/workspace/from-a-pipe");
    let left = left_by(&mut service.client(&["sandbox", "cp", "-", &there]), Some(b"piped"));
    assert_eq!(left.code, Some(0), "{left:?}");
    assert_eq!(service.ok(&["sandbox", "cp", &there, "-"]), "piped");
}

#[test]
fn what_cannot_be_copied_is_said_and_leaves_nothing() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let folder = tempfile::tempdir().expect("folder");
    let here = folder.path().join("file");
    let path = here.to_str().expect("text");
    for inside in ["/no/such/file", "/etc/shadow"] {
        let left = left_by(
            &mut service.client(&["sandbox", "cp", &format!("{sandbox}:{inside}"), path]),
            None,
        );
        assert_eq!(left.code, Some(1), "{left:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 0);
    }
    // More than the sandbox's disk holds: 256 MiB in a small one.
    write_large(&here, 400 << 20);
    let left = left_by(
        &mut service.client(&["sandbox", "cp", path, &format!("{sandbox}:/workspace/full")]),
        None,
    );
    assert_eq!(left.code, Some(1), "{left:?}");
    let found = service.shell(&sandbox, "ls /workspace; df --output=pcent /workspace | tail -1");
    assert!(!found.text().contains("full"), "half a file is no file: {found:?}");
}

/// A disk that cannot take an upload is told at once, however large the upload,
/// and nothing of it stays.
#[test]
fn an_upload_that_does_not_fit_is_refused_early() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let url = format!("{}/v1/sandboxes/{sandbox}/files?path=/workspace/large", service.url());
    let authorization = format!("Authorization: Bearer {}", service.token());
    // Sixteen times what the sandbox holds, made as it is sent, of unknown length.
    for filled in [false, true] {
        if filled {
            service.shell(&sandbox, "head -c 1G /dev/zero > /workspace/filler");
        }
        let upload = format!(
            "head -c 4G /dev/zero | curl -sS -X POST -T - -H '{authorization}' \
             -H 'Content-Type: application/octet-stream' '{url}'"
        );
        let left = left_by(std::process::Command::new("bash").args(["-c", &upload]), None);
        assert!(left.text().contains("\"code\":\"sandbox_exhausted\""), "{left:?}");
        let found = service.shell(&sandbox, "ls -A /workspace");
        assert!(!found.text().contains("large"), "{found:?}");
    }
}

/// A large file both ways, through a server whose memory stays bounded.
#[test]
fn a_large_file_passes_both_ways() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&["--size", "large"]);
    let folder = tempfile::tempdir().expect("folder");
    let here = folder.path().join("large");
    write_large(&here, large());
    let expected = digest(&here);
    let there = format!("{sandbox}:/workspace/large");
    let watch = Watch::begin(service.pid());
    service.ok(&["sandbox", "cp", here.to_str().expect("text"), &there]);
    let inside = service.shell(&sandbox, "sha256sum < /workspace/large");
    assert!(inside.text().starts_with(&expected), "{inside:?}");
    fs::remove_file(&here).expect("removed");
    service.ok(&["sandbox", "cp", &there, here.to_str().expect("text")]);
    assert_eq!(digest(&here), expected);
    let (idle, peak) = watch.end();
    println!("server: {idle} MiB before, {peak} MiB at most");
    assert!(peak < idle + 64, "the server grew from {idle} to {peak} MiB");
    // And as a stream.
    let mut command = service.client(&["sandbox", "cp", &there, "-"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut head = vec![0; 1 << 20];
    child.stdout.take().expect("a pipe").read_exact(&mut head).expect("read");
    let file = fs::read(&here).expect("read");
    assert_eq!(Digest::of(&head), Digest::of(&file[..head.len()]));
    child.wait().expect("ends");
}

/// The most memory that a process has had, from the kernel.
struct Watch {
    pid: u32,
    idle: u64,
}

impl Watch {
    fn begin(pid: u32) -> Self {
        // Resets the high-water mark.
        fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap_or_default();
        Self { pid, idle: Self::mib(pid, "VmRSS:") }
    }

    fn end(self) -> (u64, u64) {
        (self.idle, Self::mib(self.pid, "VmHWM:"))
    }

    fn mib(pid: u32, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) / 1024
    }
}
