//! The description and the files that it copies, as a tar file on the way.
//!
//! Only what the description names is sent; where a variable decides that, the
//! whole folder. Links are sent as links, and what is no file, folder or link is
//! refused.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use domain::template::description::{Action, Base, Description};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

/// Where the description is in what is sent.
pub(super) const FILE: &str = ".coldframe/description";

/// The paths of the folder that a description needs; the whole of it if empty
/// paths are among them.
pub(super) fn needed(description: &Description) -> Vec<String> {
    let mut paths = Vec::new();
    match &description.from {
        Base::OciFolder(place) | Base::OciArchive(place) | Base::DockerArchive(place) => {
            paths.push(place.path.clone());
        }
        Base::Named(_) | Base::Registry(_) => {}
    }
    for step in &description.steps {
        if let Action::Copy(copy) = &step.action {
            for source in &copy.sources {
                paths.push(source.plain().map(plain).unwrap_or_default());
            }
        }
    }
    if paths.iter().any(String::is_empty) {
        return vec![String::new()];
    }
    paths.sort();
    paths.dedup();
    // A folder brings what is below it.
    let all = paths.clone();
    let within = |path: &String| {
        all.iter()
            .any(|above| path.strip_prefix(above.as_str()).is_some_and(|s| s.starts_with('/')))
    };
    paths.retain(|path| !within(path));
    paths
}

/// One spelling for a path.
fn plain(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}

/// Whether everything is there.
pub(super) fn check(folder: &Path, paths: &[String]) -> Result<(), String> {
    for path in paths {
        if folder.join(path).symlink_metadata().is_err() {
            return Err(format!("{path:?} is not in {}", folder.display()));
        }
    }
    Ok(())
}

/// Writes the tar file, piece by piece.
pub(super) fn write(
    text: &str,
    folder: &Path,
    paths: &[String],
    pieces: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let written = pack(text, folder, paths, io::BufWriter::with_capacity(1 << 16, Pieces(pieces)));
    if let Err(error) = &written {
        // The request must not look complete.
        drop(pieces.blocking_send(Err(io::Error::new(error.kind(), "packing failed"))));
    }
    written
}

fn pack(text: &str, folder: &Path, paths: &[String], to: impl Write) -> io::Result<()> {
    let mut builder = Builder::new(to);
    let mut header = Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, FILE, text.as_bytes())?;
    for path in paths {
        append(&mut builder, folder, PathBuf::from(path))?;
    }
    builder.into_inner()?.flush()
}

fn append(builder: &mut Builder<impl Write>, folder: &Path, path: PathBuf) -> io::Result<()> {
    let mut left = vec![path];
    while let Some(path) = left.pop() {
        let place = folder.join(&path);
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", place.display()))
        };
        let metadata = place.symlink_metadata().map_err(named)?;
        let kind = metadata.file_type();
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o777);
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            builder.append_link(&mut header, &path, fs::read_link(&place).map_err(named)?)?;
        } else if kind.is_dir() {
            if !path.as_os_str().is_empty() {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, &path, io::empty())?;
            }
            let mut below = Vec::new();
            for entry in fs::read_dir(&place).map_err(named)? {
                below.push(path.join(entry.map_err(named)?.file_name()));
            }
            // The last is taken first.
            below.sort_by(|a, b| b.cmp(a));
            left.extend(below);
        } else if kind.is_file() {
            let file = fs::File::open(&place).map_err(named)?;
            header.set_size(metadata.len());
            header.set_entry_type(EntryType::Regular);
            // A file that grows meanwhile must not spoil what comes after it.
            builder.append_data(&mut header, &path, io::Read::take(file, metadata.len()))?;
        } else {
            let what = if kind.is_socket() { "a socket" } else { "a device or a pipe" };
            let text = format!("{} is {what}; leave it out of the folder", place.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    }
    Ok(())
}

/// Pieces on the way to the request.
struct Pieces<'a>(&'a mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        needed(&Description::parse(text).expect("a description"))
    }

    #[test]
    fn only_what_is_named_is_sent() {
        assert_eq!(paths("FROM base\nRUN true"), Vec::<String>::new());
        assert_eq!(paths("FROM base\nCOPY ./b a/ /x/\nCOPY a/c /y"), ["a", "b"]);
        assert_eq!(paths("FROM oci:img\nCOPY b /"), ["b", "img"]);
        assert_eq!(paths("FROM base\nCOPY . /"), [""]);
        assert_eq!(paths("FROM base\nCOPY $X /\nCOPY a /"), [""]);
    }

    #[test]
    fn a_folder_is_packed_with_its_links_and_modes() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("app")).expect("made");
        fs::write(folder.path().join("app/run"), "#!").expect("written");
        std::os::unix::fs::symlink("run", folder.path().join("app/link")).expect("linked");
        let mut bytes = Vec::new();
        pack("FROM base", folder.path(), &["app".to_owned()], &mut bytes).expect("packed");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<_> = archive
            .entries()
            .expect("entries")
            .map(|entry| {
                let entry = entry.expect("an entry");
                let kind = entry.header().entry_type();
                (entry.path().expect("a path").display().to_string(), kind)
            })
            .collect();
        let expected = [
            (FILE, EntryType::Regular),
            ("app", EntryType::Directory),
            ("app/link", EntryType::Symlink),
            ("app/run", EntryType::Regular),
        ];
        let expected = expected.map(|(name, kind)| (name.to_owned(), kind));
        assert_eq!(names, expected);
    }
}
