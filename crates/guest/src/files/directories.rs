//! Looking at, making and removing entries. Blocking calls.

use std::{fs, io, path::Path};

use guest_protocol::filesystem::EntryInfo;

use super::{
    entry::describe,
    failure::{Failure, Kind},
};
use crate::account::Accounts;

/// Entries of one listing; more would not fit into a message either.
const MOST: usize = 16 * 1024;
/// Levels of one listing; deeper than any path can be.
const DEEPEST: u32 = 2048;

/// What is at a path.
pub(crate) fn stat(path: &Path) -> Result<EntryInfo, Failure> {
    describe(path, &accounts()?).map_err(|error| Failure::about(path, &error))
}

/// What is below a directory, parents before their children, names sorted.
pub(crate) fn list(path: &Path, depth: u32) -> Result<Vec<EntryInfo>, Failure> {
    // Follows a link: the question is what the directory holds.
    let metadata = fs::metadata(path).map_err(|error| Failure::about(path, &error))?;
    if !metadata.is_dir() {
        let text = format!("path is not a directory: {}", path.display());
        return Err(Failure::new(Kind::Invalid, text));
    }
    let accounts = accounts()?;
    let mut entries = Vec::new();
    // A stack of names yet to be visited, the next one last.
    let mut waiting = children(path, 1).map_err(|error| Failure::about(path, &error))?;
    while let Some((path, level)) = waiting.pop() {
        let entry = match describe(&path, &accounts) {
            Ok(entry) => entry,
            // Removed while we looked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::about(&path, &error)),
        };
        let descend = level < depth.clamp(1, DEEPEST) && entry.permissions.starts_with('d');
        entries.push(entry);
        if entries.len() + waiting.len() > MOST {
            let text = format!("more than {MOST} entries: list a directory further down");
            return Err(Failure::new(Kind::TooMany, text));
        }
        if descend {
            // One that may not be read is listed without its content.
            waiting.extend(children(&path, level + 1).unwrap_or_default());
        }
    }
    Ok(entries)
}

/// Makes a directory and its parents.
pub(crate) fn make(path: &Path) -> Result<EntryInfo, Failure> {
    let exists = |text: &str, kind| {
        Err(Failure::new(kind, format!("path already exists{text}: {}", path.display())))
    };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => exists("", Kind::Exists),
        Ok(_) => exists(" and is not a directory", Kind::Invalid),
        Err(_) => {
            fs::create_dir_all(path).map_err(|error| Failure::about(path, &error))?;
            stat(path)
        }
    }
}

/// Removes what is at a path, with all it holds. Nothing there is a success.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    let outcome = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::about(path, &error)),
        _ => Ok(()),
    }
}

/// Makes the directory that `path` shall be in.
pub(crate) fn make_parent(path: &Path) -> Result<(), Failure> {
    match path.parent() {
        Some(parent) if !parent.is_dir() => {
            fs::create_dir_all(parent).map_err(|error| Failure::about(parent, &error))
        }
        _ => Ok(()),
    }
}

fn children(path: &Path, level: u32) -> io::Result<Vec<(std::path::PathBuf, u32)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)?.take(MOST + 1) {
        names.push(entry?.file_name());
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names.into_iter().map(|name| (path.join(name), level)).collect())
}

fn accounts() -> Result<Accounts, Failure> {
    Accounts::read().map_err(|error| Failure::about(Path::new("/etc/passwd"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path, depth: u32) -> Vec<String> {
        let entries = list(path, depth).unwrap();
        let relative = |entry: &EntryInfo| {
            Path::new(&entry.path).strip_prefix(path).unwrap().to_string_lossy().into_owned()
        };
        entries.iter().map(relative).collect()
    }

    #[test]
    fn a_listing_walks_in_order_to_its_depth() {
        let folder = tempfile::tempdir().unwrap();
        make(&folder.path().join("b/c/d")).unwrap();
        for file in ["a", "b/c/x", "b/y", "z"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(names(folder.path(), 0), ["a", "b", "z"]);
        assert_eq!(names(folder.path(), 2), ["a", "b", "b/c", "b/y", "z"]);
        let all = ["a", "b", "b/c", "b/c/d", "b/c/x", "b/y", "z"];
        assert_eq!(names(folder.path(), 9), all);
    }

    #[test]
    fn making_and_removing_say_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x/y");
        assert_eq!(make(&path).unwrap().name, "y");
        assert_eq!(make(&path).unwrap_err().kind, Kind::Exists);
        fs::write(path.join("file"), "").unwrap();
        assert_eq!(make(&path.join("file")).unwrap_err().kind, Kind::Invalid);
        assert_eq!(list(&path.join("file"), 1).unwrap_err().kind, Kind::Invalid);
        remove(&folder.path().join("x")).unwrap();
        remove(&folder.path().join("x")).unwrap();
        assert_eq!(list(&path, 1).unwrap_err().kind, Kind::NotFound);
    }
}
