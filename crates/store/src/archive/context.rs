//! A folder that a client sent as a tar file, read where it lies.
//!
//! Nothing is unpacked: an index of the members is made once, and a file is read
//! from its place in the tar file. So a member can be no device, no link out of
//! the folder is ever followed, and what was checked is what is read.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use super::{ArchiveError, Bounds, Kind, each};

/// The most members of a context.
const MAX_MEMBERS: u64 = 100_000;

/// A part of a file, as a reader.
#[derive(Clone, Debug)]
pub struct Section {
    file: Arc<File>,
    at: u64,
    left: u64,
}

/// A tree of files in a tar file.
#[derive(Clone, Debug)]
pub struct Context {
    whole: Section,
    entries: BTreeMap<String, Entry>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub what: What,
    /// Its permission bits, without setuid and the like.
    pub mode: u32,
    /// When it changed, in seconds since 1970.
    pub modified: u64,
}

/// A file, a folder or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A file.
    File {
        /// Where its content begins.
        offset: u64,
        /// How long it is.
        size: u64,
    },
    /// A folder.
    Folder,
    /// A symbolic link and where it points.
    Link(String),
}

impl Section {
    /// The whole of `file`.
    pub fn whole(file: File) -> io::Result<Self> {
        let left = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), at: 0, left })
    }

    /// How many bytes are left to read.
    pub fn len(&self) -> u64 {
        self.left
    }

    /// Whether nothing is left to read.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    fn part(&self, offset: u64, size: u64) -> Self {
        let offset = offset.min(self.left);
        Self { file: self.file.clone(), at: self.at + offset, left: size.min(self.left - offset) }
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let n_read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += n_read as u64;
        self.left -= n_read as u64;
        Ok(n_read)
    }
}

impl Context {
    /// Reads the names in the tar file `whole`. Later members replace earlier
    /// ones of the same name.
    pub fn read(whole: Section) -> Result<Self, ArchiveError> {
        let mut entries = BTreeMap::new();
        let bounds = Bounds { members: MAX_MEMBERS, bytes: whole.len() };
        each(io::BufReader::with_capacity(64 * 1024, whole.clone()), bounds, |member, _| {
            let shown = member.name.joined().to_string_lossy().into_owned();
            let refuse = |reason| ArchiveError::Refused { name: shown.clone(), reason };
            let text = |name: &std::ffi::OsStr| {
                name.to_str().map(str::to_owned).ok_or_else(|| refuse("its name is not UTF-8"))
            };
            let what = match &member.kind {
                Kind::File => What::File { offset: member.offset, size: member.size },
                Kind::Folder => What::Folder,
                Kind::Link(target) => What::Link(text(target)?),
                Kind::HardLink(target) => match entries.get(&text(&target.joined())?) {
                    Some(Entry { what: what @ What::File { .. }, .. }) => what.clone(),
                    _ => return Err(refuse("it is another name of a file that is not there")),
                },
            };
            let entry = Entry { what, mode: member.mode & 0o777, modified: member.modified };
            entries.insert(text(&member.name.joined())?, entry);
            Ok(())
        })?;
        Ok(Self { whole, entries })
    }

    /// What is at `path`, which has no `.`, no `..` and no `/` around it.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Everything below `folder`, in order; everything for the empty path.
    pub fn below<'a>(&'a self, folder: &str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let from = self.entries.range(prefix.clone()..);
        from.take_while(move |(path, _)| path.starts_with(&prefix))
            .filter(|(path, _)| !path.is_empty())
            .map(|(path, entry)| (path.as_str(), entry))
    }

    /// The content of a file.
    pub fn open(&self, path: &str) -> Option<Section> {
        match self.entries.get(path)?.what {
            What::File { offset, size } => Some(self.whole.part(offset, size)),
            What::Folder | What::Link(_) => None,
        }
    }
}
