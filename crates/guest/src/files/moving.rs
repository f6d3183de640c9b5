//! Moving an entry, also from one file system to another. Blocking calls.
//!
//! `/tmp` and `/workspace` are file systems of their own to the kernel, so a
//! move between them and the rest is a copy and a removal, as `mv` does it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use guest_protocol::filesystem::EntryInfo;

use super::{
    directories,
    failure::{Failure, Kind},
    metadata,
};

/// Moves; an existing file at the destination is replaced.
pub(crate) fn rename(source: &Path, destination: &Path) -> Result<EntryInfo, Failure> {
    fs::symlink_metadata(source).map_err(|error| Failure::about(source, &error))?;
    directories::make_parent(destination)?;
    match fs::rename(source, destination) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            if destination.starts_with(source) {
                let text = "a directory cannot be moved into itself";
                return Err(Failure::new(Kind::Invalid, text));
            }
            let copied = copy(source, destination);
            copied.map_err(|error| Failure::about(destination, &error))?;
            directories::remove(source)?;
        }
        Err(error) => return Err(Failure::about(destination, &error)),
    }
    directories::stat(destination)
}

/// Copies an entry with all it holds. What was copied stays if it fails: the
/// source is whole then.
fn copy(source: &Path, destination: &Path) -> io::Result<()> {
    let mut waiting: Vec<(PathBuf, PathBuf)> = vec![(source.into(), destination.into())];
    while let Some((from, to)) = waiting.pop() {
        let own = fs::symlink_metadata(&from)?;
        if own.is_dir() {
            match fs::create_dir(&to) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            fs::set_permissions(&to, own.permissions())?;
            for entry in fs::read_dir(&from)? {
                let name = entry?.file_name();
                waiting.push((from.join(&name), to.join(&name)));
            }
        } else if own.is_symlink() {
            match fs::remove_file(&to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            symlink(fs::read_link(&from)?, &to)?;
        } else if own.is_file() {
            copy_file(&from, &to, &own)?;
        } else {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, own: &fs::Metadata) -> io::Result<()> {
    let mut input = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(from)?;
    let mut output = File::options().write(true).create(true).truncate(true).open(to)?;
    io::copy(&mut input, &mut output)?;
    metadata::copy(from, &output)?;
    output.set_permissions(fs::Permissions::from_mode(own.permissions().mode() & 0o7777))?;
    output.set_times(fs::FileTimes::new().set_modified(own.modified()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_holds_everything_the_source_held() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("deep/er")).unwrap();
        fs::write(from.join("deep/file"), "text").unwrap();
        fs::set_permissions(from.join("deep/file"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("file", from.join("deep/link")).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("deep/link")).unwrap(), "text");
        let mode = fs::metadata(to.join("deep/file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        assert!(to.join("deep/er").is_dir());
    }

    #[test]
    fn moving_makes_the_parents_of_the_destination() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "1").unwrap();
        let entry = rename(&folder.path().join("a"), &folder.path().join("x/y/b")).unwrap();
        assert_eq!(entry.name, "b");
        let again = rename(&folder.path().join("a"), &folder.path().join("c"));
        assert_eq!(again.unwrap_err().kind, Kind::NotFound);
    }
}
