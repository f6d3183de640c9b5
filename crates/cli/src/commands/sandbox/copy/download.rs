//! From a sandbox to here.
//!
//! Names, kinds, sizes and numbers come from inside and are not believed: a name
//! is one component, folders are opened without following links, a file appears
//! under its name only when it is complete, and no bit beyond the ordinary
//! permissions is set.

use std::{
    fs::File,
    io::Write as _,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use guest_protocol::filesystem::{EntryInfo, FileType};
use http_body_util::BodyExt as _;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, renameat, unlinkat},
    io::Errno,
};

use super::{Copy, is_contents, name_of};
use crate::{
    error::{Failure, Kind, Outcome, printable},
    output,
};

/// More folders than this inside each other are no tree of a person's.
const MAX_DEPTH: usize = 200;
/// More entries than this in one copy are refused.
const MAX_ENTRIES: usize = 1_000_000;

/// Copies a file or a folder.
pub(super) async fn path(copy: &mut Copy, from: &str, to: &Path) -> Outcome<()> {
    let entry = copy.guest.stat(from, &copy.user).await?;
    let name = name_of(from).or_else(|| name_of(&entry.path));
    let into = to.is_dir();
    if into && is_contents(from.as_bytes()) {
        return tree(copy, from, open(to)?).await;
    }
    let (parent, name) = if into {
        let name = name.filter(|name| is_component(name));
        (to, name.map(Into::into).ok_or_else(|| Failure::usage("it has no name to copy under"))?)
    } else {
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = to.file_name().ok_or_else(|| {
            Failure::usage(format!("{} is not a path that can be written", to.display()))
        })?;
        (parent.unwrap_or(Path::new(".")), name.to_owned())
    };
    let name = Path::new(&name);
    let folder = open(parent)?;
    match entry.kind {
        FileType::Directory => {
            let folder = enter(folder.as_fd(), name)?;
            tree(copy, from, folder).await
        }
        FileType::File if !into && to.exists() && !to.is_file() => {
            // A device or a pipe is written to; it cannot be replaced.
            let mut open = File::options().write(true).open(to)?;
            fetch(copy, from, &mut open).await
        }
        FileType::File | FileType::Symlink | FileType::Unspecified => {
            file(copy, from, &entry, folder.as_fd(), name).await
        }
    }
}

/// Opens a folder that the caller named.
fn open(folder: &Path) -> Outcome<OwnedFd> {
    openat(CWD, folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Failure::usage(format!("{}: {error}", folder.display())))
}

/// Copies a file to standard output.
pub(super) async fn stream(copy: &mut Copy, from: &str) -> Outcome<()> {
    let (_, mut body) = copy.guest.read_file(from, &copy.user).await?;
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(|error| broken(from, &*error))?.into_data() {
            copy.moved(bytes.len());
            output::bytes(&bytes)?;
        }
    }
    copy.done.files += 1;
    Ok(())
}

/// Copies what is in a folder.
async fn tree(copy: &mut Copy, from: &str, to: OwnedFd) -> Outcome<()> {
    let mut waiting = vec![(from.trim_end_matches('/').to_owned(), to, 0_usize)];
    let mut n_entries = 0;
    while let Some((path, folder, depth)) = waiting.pop() {
        let path = if path.is_empty() { "/".to_owned() } else { path };
        for entry in copy.guest.list_dir(&path, 1, &copy.user).await? {
            n_entries += 1;
            if n_entries > MAX_ENTRIES || depth > MAX_DEPTH {
                return Err(Failure::refused("there are too many entries to copy"));
            }
            let inside = format!("{}/{}", path.trim_end_matches('/'), entry.name);
            if !is_component(&entry.name) {
                copy.skip(&inside, "its name cannot be used here");
                continue;
            }
            let name = Path::new(&entry.name);
            match entry.kind {
                _ if entry.is_symlink => copy.skip(&inside, "a symbolic link"),
                FileType::Directory => {
                    waiting.push((inside, enter(folder.as_fd(), name)?, depth + 1));
                }
                FileType::File => file(copy, &inside, &entry, folder.as_fd(), name).await?,
                FileType::Symlink | FileType::Unspecified => {
                    copy.skip(&inside, "neither a file nor a folder");
                }
            }
        }
    }
    Ok(())
}

/// Opens the folder called `name`, made if it is missing; never a link.
fn enter(folder: BorrowedFd<'_>, name: &Path) -> Outcome<OwnedFd> {
    match mkdirat(folder, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(unwritable(name, error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty()).map_err(|error| unwritable(name, error))
}

/// A file that disappears unless it is kept.
struct Partial<'a> {
    folder: BorrowedFd<'a>,
    name: String,
    kept: bool,
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now is visibly incomplete by its name.
            unlinkat(self.folder, self.name.as_str(), AtFlags::empty()).ok();
        }
    }
}

/// Copies one file into an open folder.
async fn file(
    copy: &mut Copy,
    from: &str,
    entry: &EntryInfo,
    folder: BorrowedFd<'_>,
    name: &Path,
) -> Outcome<()> {
    let name_partial = format!(".coldframe-{}-{}.part", std::process::id(), copy.done.files);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(folder, name_partial.as_str(), flags, Mode::from_raw_mode(0o600));
    let mut open = File::from(opened.map_err(|error| unwritable(name, error))?);
    let mut partial = Partial { folder, name: name_partial, kept: false };
    fetch(copy, from, &mut open).await?;
    fchmod(&open, Mode::from_raw_mode(mode(entry)))
        .and_then(|()| renameat(folder, partial.name.as_str(), folder, name))
        .map_err(|error| unwritable(name, error))?;
    partial.kept = true;
    Ok(())
}

/// Streams a file's content.
async fn fetch(copy: &mut Copy, from: &str, to: &mut File) -> Outcome<()> {
    let (length, mut body) = copy.guest.read_file(from, &copy.user).await?;
    let mut n_bytes = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(|error| broken(from, &*error))?.into_data() {
            to.write_all(&bytes)?;
            n_bytes += bytes.len() as u64;
            copy.moved(bytes.len());
        }
    }
    if length.is_some_and(|length| length != n_bytes) {
        let message = format!("{}: it broke off after {n_bytes} bytes", printable(from));
        return Err(Failure::new(Kind::Unreachable, message));
    }
    copy.done.files += 1;
    Ok(())
}

/// Readable by us; of the rest only the ordinary permissions.
fn mode(entry: &EntryInfo) -> u32 {
    match entry.mode & 0o777 {
        0 => 0o644,
        mode => mode | 0o600,
    }
}

/// Whether a name is one component of a path and nothing special.
fn is_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

fn broken(path: &str, error: &dyn std::error::Error) -> Failure {
    Failure::because(Kind::Unreachable, &printable(path), error)
}

fn unwritable(name: &Path, error: Errno) -> Failure {
    Failure::refused(format!("{} cannot be written: {error}", name.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_inside_stays_in_its_folder() {
        for name in ["", ".", "..", "a/b", "/etc", "a\0b"] {
            assert!(!is_component(name), "{name:?}");
        }
        assert!(is_component("a\nb"));
        assert!(is_component("..a"));
    }

    #[test]
    fn no_special_bit_arrives() {
        let entry = |mode| EntryInfo { mode, ..EntryInfo::default() };
        assert_eq!(mode(&entry(0o6755)), 0o755);
        assert_eq!(mode(&entry(0o100_444)), 0o644);
        assert_eq!(mode(&entry(0)), 0o644);
    }
}
