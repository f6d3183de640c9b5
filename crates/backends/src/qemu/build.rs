//! The QEMU of this host, and the jail root made of it.
//!
//! A jail root is a folder with QEMU, the libraries and the accelerator module
//! it loads, and four small firmware files: nothing else of the host can be
//! seen from inside. It is made once for each build of QEMU, by copying, so that
//! an upgrade of the host never changes what a running machine has.
//!
//! The build's digest covers all of these files. Device state of one build is
//! never loaded by another.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use domain::image::digest::Digest;
use serde::{Deserialize, Serialize};

/// The dynamic linker's path in the x86-64 ABI.
const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Where distributions put QEMU's modules.
const MODULES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu/qemu", "/usr/lib64/qemu", "/usr/lib/qemu"];
/// Firmware that a `microvm` with a Linux kernel asks for.
const FIRMWARE: [&str; 2] = ["bios-microvm.bin", "linuxboot_dma.bin"];
/// Firmware that some builds ask for.
const OPTIONAL_FIRMWARE: [&str; 2] = ["pvh.bin", "kvmvapic.bin"];

/// A build of QEMU that is ready to be confined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Build {
    /// What `--version` says.
    pub(super) version: String,
    /// Digest of every file.
    pub(super) digest: Digest,
    /// The jail root.
    pub(super) root: PathBuf,
    /// The program inside the root.
    pub(super) program: String,
    /// The host's files, as they were when they were copied.
    sources: BTreeMap<PathBuf, Stamp>,
}

/// Changes whenever a file is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Build {
    /// Whether the host's files are still the ones that were copied, and the
    /// copies are there.
    pub(super) fn is_current(&self) -> bool {
        self.root.is_dir()
            && self
                .sources
                .iter()
                .all(|(path, stamp)| stamp_of(path).is_ok_and(|now| now == *stamp))
    }
}

/// What QEMU says its version is.
pub(super) fn version(qemu: &Path) -> io::Result<String> {
    let text = output(Command::new(qemu).arg("--version"))?;
    let first = text.lines().next().unwrap_or_default();
    Ok(first.trim_start_matches("QEMU emulator version ").to_owned())
}

/// Finds everything QEMU needs and makes the jail root below `folder`.
pub(super) fn prepare(qemu: &Path, folder: &Path) -> io::Result<Build> {
    let qemu = fs::canonicalize(qemu)?;
    let version = version(&qemu)?;
    // From its place in the jail to its place on the host.
    let mut files: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut programs = vec![qemu.clone()];
    programs.extend(modules());
    for program in programs {
        for library in libraries(&program)? {
            files.insert(library.clone(), library);
        }
        files.insert(program.clone(), program);
    }
    let firmware = firmware_folders(&qemu)?;
    for name in FIRMWARE.into_iter().chain(OPTIONAL_FIRMWARE) {
        let found = firmware.iter().map(|folder| folder.join(name)).find(|path| path.exists());
        match found {
            Some(path) => drop(files.insert(Path::new("/firmware").join(name), path)),
            None if OPTIONAL_FIRMWARE.contains(&name) => {}
            None => return Err(io::Error::other(format!("QEMU's firmware {name} is missing"))),
        }
    }

    let mut sources = BTreeMap::new();
    let mut listing = String::new();
    for (place, source) in &files {
        let real = fs::canonicalize(source)?;
        sources.insert(real.clone(), stamp_of(&real)?);
        listing.push_str(&format!("{} {}\n", Digest::of(&fs::read(&real)?), place.display()));
    }
    let digest = Digest::of(listing.as_bytes());
    let root = folder.join(&digest.hex()[..16]);
    if !root.is_dir() {
        copy(&files, folder, &root)?;
    }
    let program = qemu.to_string_lossy().into_owned();
    Ok(Build { version, digest, root, program, sources })
}

fn copy(files: &BTreeMap<PathBuf, PathBuf>, folder: &Path, root: &Path) -> io::Result<()> {
    // Of this attempt alone: another process, or another thread of this one, may
    // be making the same jail at this moment.
    static ATTEMPTS: AtomicU32 = AtomicU32::new(0);
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("new-{}-{attempt}", std::process::id()));
    fs::create_dir_all(new.join("proc"))?;
    fs::create_dir_all(new.join("dev"))?;
    for device in ["null", "urandom", "kvm"] {
        fs::write(new.join("dev").join(device), "")?;
    }
    for (place, source) in files {
        let target = new.join(place.strip_prefix("/").unwrap_or(place));
        fs::create_dir_all(target.parent().unwrap_or(&new))?;
        fs::copy(source, &target)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o555))?;
    }
    close(&new)?;
    match fs::rename(&new, root) {
        // Another process made the same one in the meantime.
        Err(_) if root.is_dir() => fs::remove_dir_all(&new),
        result => result,
    }
}

/// Nobody but root changes anything, and everybody may look.
fn close(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            close(&entry.path())?;
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o555))
}

fn stamp_of(path: &Path) -> io::Result<Stamp> {
    let status = fs::metadata(path)?;
    let modified = (status.mtime(), status.mtime_nsec());
    Ok(Stamp { inode: status.ino(), bytes: status.len(), modified })
}

/// Distributions build accelerators as modules that are found by name.
fn modules() -> Vec<PathBuf> {
    let folders = MODULES.into_iter().map(Path::new);
    let modules = folders.map(|folder| folder.join("accel-tcg-x86_64.so"));
    modules.filter(|path| path.exists()).collect()
}

fn firmware_folders(qemu: &Path) -> io::Result<Vec<PathBuf>> {
    let text = output(Command::new(qemu).args(["-L", "help"]))?;
    Ok(text.lines().map(PathBuf::from).collect())
}

fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(parse_libraries(&output(Command::new(LINKER).arg("--list").arg(program))?))
}

fn parse_libraries(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.trim();
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        let path = path.split(" (0x").next().unwrap_or_default();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    text.lines().filter_map(path).collect()
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.env_clear().stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    if !output.status.success() {
        let program = command.get_program().to_string_lossy().into_owned();
        return Err(io::Error::other(format!("{program} ended with {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_the_linkers_list() {
        let text = "\tlinux-vdso.so.1 (0x00007fff)\n\
            \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse_libraries(text), expected.map(PathBuf::from));
    }

    #[test]
    fn jails_made_at_the_same_moment_are_one_and_complete() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fs::write(&source, vec![7; 1 << 20]).unwrap();
        let place = |number: u8| (PathBuf::from(format!("/lib/{number}")), source.clone());
        let files: BTreeMap<_, _> = (0..20).map(place).collect();
        let root = folder.path().join("root");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| copy(&files, folder.path(), &root).unwrap());
            }
        });
        assert_eq!(fs::read_dir(root.join("lib")).unwrap().count(), 20);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_jail_holds_the_listed_files_and_nothing_to_write_to() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fs::write(&source, "program").unwrap();
        let files = [(PathBuf::from("/usr/bin/x"), source)].into();
        let root = folder.path().join("root");
        copy(&files, folder.path(), &root).unwrap();
        assert_eq!(fs::read_to_string(root.join("usr/bin/x")).unwrap(), "program");
        for place in [".", "usr", "usr/bin/x", "proc", "dev"] {
            let mode = fs::metadata(root.join(place)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o555, "{place}");
        }
        // A second attempt is the same jail.
        copy(&files, folder.path(), &root).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
