//! Members of a tar file that comes from anywhere.
//!
//! [`each`] reads a tar file front to back and hands over one [`Member`] at a
//! time, its name parsed into components. What it hands over is safe to join to
//! a folder: no component is empty, `.` or `..`, and none would be one to a
//! system on which `\` separates components.
//!
//! Invariants:
//!
//! - A name that begins at the root, or leaves the folder, ends the reading.
//! - Extensions are read up to [`MAX_EXTENSION`]; an announced length allocates
//!   nothing.
//! - The number of members, and of their bytes, is bounded by the caller.
//!
//! Deliberately absent: writing anything. Whoever unpacks decides what a link
//! means; see [`crate::oci`].

use std::{
    ffi::OsString,
    io::{self, Read},
    os::unix::ffi::OsStringExt as _,
};

use tar::{Archive, EntryType, Header, PaxExtensions};

pub mod context;

/// The longest header extension that is read: a path, a link, a capability.
const MAX_EXTENSION: u64 = 64 * 1024;
/// The longest name in bytes, as Linux has it.
const MAX_NAME: usize = 4096;
/// The longest component in bytes, as Linux has it.
const MAX_COMPONENT: usize = 255;

/// How much may come.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Members.
    pub members: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// Why a tar file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is broken, or not one.
    #[error("the archive cannot be read")]
    Unreadable(#[source] io::Error),
    /// A member that has no business in it.
    #[error("the archive was refused because of {name:?}: {reason}")]
    Refused {
        /// The member.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// It is larger than the caller accepts.
    #[error("the archive holds more than {0}")]
    TooLarge(&'static str),
}

/// A name in components; none for the folder itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub(crate) Vec<OsString>);

/// What a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link and where it points, as it was written.
    Link(OsString),
    /// Another name of a file in the same tree.
    HardLink(Name),
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it goes.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// Bytes of its content.
    pub size: u64,
    /// Permission bits, setuid and the like included.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it changed, in seconds since 1970.
    pub modified: u64,
    /// The value of `security.capability`, if it has one.
    pub capability: Option<Vec<u8>>,
    /// Where its content begins, counted from the begin of the tar file.
    pub offset: u64,
}

/// What extensions say about the member behind them.
#[derive(Debug, Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
    capability: Option<Vec<u8>>,
}

impl Name {
    /// Parses a name of a member.
    fn parse(raw: &[u8]) -> Result<Self, &'static str> {
        if raw.len() > MAX_NAME {
            return Err("its name is too long");
        }
        if raw.contains(&0) {
            return Err("its name holds a NUL byte");
        }
        // Some tools name the folder itself so, and nothing else.
        if raw.first() == Some(&b'/') && raw.iter().any(|byte| *byte != b'/') {
            return Err("its name begins at the root");
        }
        let mut parts = Vec::new();
        for part in raw.split(|byte| *byte == b'/') {
            if part.is_empty() || part == b"." {
                continue;
            }
            if part.len() > MAX_COMPONENT {
                return Err("a part of its name is too long");
            }
            // `..`, and what is one where `\` separates. Other backslashes are
            // ordinary: units of systemd have them.
            let drive = part.len() >= 2 && part[0].is_ascii_alphabetic() && part[1] == b':';
            let backslash = part.contains(&b'\\');
            if part.split(|byte| *byte == b'\\').any(|part| part == b"..") || drive && backslash {
                return Err("its name leaves the folder");
            }
            parts.push(OsString::from_vec(part.to_vec()));
        }
        Ok(Self(parts))
    }

    /// The components joined by `/`.
    pub fn joined(&self) -> OsString {
        let parts: Vec<&[u8]> = self.0.iter().map(|part| part.as_encoded_bytes()).collect();
        OsString::from_vec(parts.join(&b'/'))
    }
}

/// Hands every member of `archive` to `take`, with a reader of its content.
///
/// # Errors
/// The first thing that is wrong with the archive, or the first error of `take`.
pub fn each<E: From<ArchiveError>>(
    archive: impl Read,
    bounds: Bounds,
    mut take: impl FnMut(&Member, &mut dyn Read) -> Result<(), E>,
) -> Result<(), E> {
    let mut archive = Archive::new(archive);
    // Raw, because an extension is read within bounds here or not at all.
    let entries = archive.entries().map_err(ArchiveError::Unreadable)?.raw(true);
    let (mut members, mut bytes) = (0, 0);
    let mut extended = Extended::default();
    for entry in entries {
        let mut entry = entry.map_err(ArchiveError::Unreadable)?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader) {
            extended.read(kind, &mut entry)?;
            continue;
        }
        if kind == EntryType::XGlobalHeader {
            // Comments of whoever made the archive; nothing here depends on one.
            continue;
        }
        members += 1;
        if members > bounds.members {
            return Err(ArchiveError::TooLarge("the files that are accepted").into());
        }
        let offset = entry.raw_file_position();
        let member = member(entry.header(), std::mem::take(&mut extended), offset)?;
        bytes = member.size.saturating_add(bytes);
        if bytes > bounds.bytes {
            return Err(ArchiveError::TooLarge("the bytes that are accepted").into());
        }
        take(&member, &mut entry)?;
    }
    Ok(())
}

impl Extended {
    fn read(&mut self, kind: EntryType, entry: &mut impl Read) -> Result<(), ArchiveError> {
        let mut text = Vec::new();
        entry.take(MAX_EXTENSION + 1).read_to_end(&mut text).map_err(ArchiveError::Unreadable)?;
        if text.len() as u64 > MAX_EXTENSION {
            return Err(ArchiveError::TooLarge("an extension that is accepted"));
        }
        let ended = |mut text: Vec<u8>| {
            if text.last() == Some(&0) {
                text.pop();
            }
            Some(text)
        };
        match kind {
            EntryType::GNULongName => self.name = ended(text),
            EntryType::GNULongLink => self.link = ended(text),
            _ => {
                for record in PaxExtensions::new(&text) {
                    let record = record.map_err(ArchiveError::Unreadable)?;
                    let value = record.value_bytes();
                    match record.key_bytes() {
                        b"path" => self.name = Some(value.to_vec()),
                        b"linkpath" => self.link = Some(value.to_vec()),
                        b"uid" => self.uid = number(value),
                        b"gid" => self.gid = number(value),
                        b"SCHILY.xattr.security.capability" => {
                            self.capability = Some(value.to_vec());
                        }
                        // The headers are read without it, so it would be read
                        // from another place than it says.
                        b"size" => {
                            return Err(ArchiveError::Refused {
                                name: "an extension".to_owned(),
                                reason: "it gives another size; no file may have 8 GiB",
                            });
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn member(header: &Header, extended: Extended, offset: u64) -> Result<Member, ArchiveError> {
    let raw = extended.name.unwrap_or_else(|| header.path_bytes().into_owned());
    let shown = || String::from_utf8_lossy(&raw).chars().take(200).collect::<String>();
    let refuse = |reason| ArchiveError::Refused { name: shown(), reason };
    let name = Name::parse(&raw).map_err(refuse)?;
    let target = || {
        let link = extended.link.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
        link.filter(|link| !link.is_empty() && link.len() <= MAX_NAME && !link.contains(&0))
            .ok_or(refuse("its link points nowhere"))
    };
    let kind = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::Directory => Kind::Folder,
        EntryType::Symlink => Kind::Link(OsString::from_vec(target()?)),
        EntryType::Link => {
            // Some tools write the other name from the root of the tree.
            let target = target()?;
            let target = target.strip_prefix(b"/").unwrap_or(&target);
            Kind::HardLink(Name::parse(target).map_err(refuse)?)
        }
        EntryType::Block | EntryType::Char | EntryType::Fifo => {
            return Err(refuse("it is a device or a pipe"));
        }
        _ => return Err(refuse("it is of a kind that is not understood")),
    };
    let read = |field: io::Result<u64>| field.map_err(ArchiveError::Unreadable);
    let size = read(header.entry_size())?;
    if size > 0 && kind != Kind::File {
        return Err(refuse("it has content and is no file"));
    }
    let id = |given: Option<u64>, field: io::Result<u64>| -> Result<u32, ArchiveError> {
        // Some tools leave the field blank for root. The last number means
        // "leave it" to the system.
        let id = given.unwrap_or_else(|| field.unwrap_or(0));
        let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
        id.ok_or_else(|| refuse("it belongs to nobody"))
    };
    Ok(Member {
        size,
        mode: header.mode().map_err(ArchiveError::Unreadable)? & 0o7777,
        uid: id(extended.uid, header.uid())?,
        gid: id(extended.gid, header.gid())?,
        modified: header.mtime().unwrap_or(0),
        capability: extended.capability,
        offset,
        name,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(raw: &str) -> Result<OsString, &'static str> {
        Name::parse(raw.as_bytes()).map(|name| name.joined())
    }

    /// Z-01: a name that leaves its folder is none.
    #[test]
    fn no_name_leaves_its_folder() {
        for raw in [
            "../../../../tmp/pwn",
            "/tmp/pwn",
            "a/../../pwn",
            "C:\\pwn",
            "..\\pwn",
            "a/..\\..\\pwn",
            "..",
            "a/..",
        ] {
            assert!(parsed(raw).is_err(), "{raw:?}");
        }
        assert_eq!(parsed("./a//b/./c/"), Ok("a/b/c".into()));
        assert_eq!((parsed("/"), parsed("./")), (Ok("".into()), Ok("".into())));
        assert_eq!(parsed("units/x\\x2dy.slice"), Ok("units/x\\x2dy.slice".into()));
    }

    fn refusal(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> ArchiveError {
        let mut builder = tar::Builder::new(Vec::new());
        build(&mut builder);
        let bytes = builder.into_inner().expect("a tar file");
        let bounds = Bounds { members: 8, bytes: 1000 };
        each(bytes.as_slice(), bounds, |_, _| Ok::<_, ArchiveError>(())).expect_err("refused")
    }

    fn append(builder: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &str, size: u64) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        let content = io::repeat(b'x').take(size);
        builder.append_data(&mut header, name, content).expect("appended");
    }

    /// U38: an archive cannot fill memory or a disk by what it announces.
    #[test]
    fn an_archive_is_bounded_in_number_and_size() {
        let error = refusal(|builder| {
            (0..9).for_each(|i| {
                append(builder, EntryType::Regular, &i.to_string(), 0);
            })
        });
        assert!(matches!(error, ArchiveError::TooLarge(_)), "{error}");
        let error = refusal(|builder| append(builder, EntryType::Regular, "a", 1001));
        assert!(matches!(error, ArchiveError::TooLarge(_)), "{error}");
        let error = refusal(|builder| {
            append(builder, EntryType::XHeader, "a", MAX_EXTENSION + 1);
        });
        assert!(matches!(error, ArchiveError::TooLarge(_)), "{error}");
    }

    #[test]
    fn devices_and_unknown_kinds_are_refused() {
        for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::GNUSparse] {
            let error = refusal(|builder| append(builder, kind, "dev/x", 0));
            assert!(matches!(error, ArchiveError::Refused { .. }), "{error}");
        }
    }
}
