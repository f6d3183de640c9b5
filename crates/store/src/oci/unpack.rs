//! Layers on top of each other into one folder, and nowhere else.
//!
//! Every step goes from the open folder: the way to a member's parent is opened
//! by the kernel with the demand that it stays beneath the folder and passes no
//! symbolic link. A link may be made, and is never followed. A member whose way
//! leads through one is refused.
//!
//! Deletions: `.wh.NAME` removes what lower layers have under that name, and
//! `.wh..wh..opq` all that they have in its folder; what the same layer brings
//! stays, whichever comes first.
//!
//! Deliberately absent: devices, pipes and sparse files ([`crate::archive`]
//! refuses them), and extended attributes but file capabilities.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags, chownat,
        fchmod, fchown, fsetxattr, futimens, linkat, mkdirat, openat, openat2, statat, symlinkat,
        unlinkat, utimensat,
    },
    io::Errno,
};

use super::OciError;
use crate::archive::{ArchiveError, Bounds, Kind, Member, Name, each};

/// How much an image may hold, over all layers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Members.
    pub members: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

impl Default for Limits {
    /// 8 GiB and half a million files.
    fn default() -> Self {
        Self { members: 500_000, bytes: 8 << 30 }
    }
}

/// A folder that layers are applied to.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
    left: Limits,
}

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What makes a way out of the folder impossible.
pub(crate) const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Tree {
    /// The folder at `path`, which must be there and empty.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, OciError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        let root = root.map_err(|error| OciError::io(path)(error.into()))?;
        Ok(Self { root, path: path.to_owned(), left: limits })
    }

    /// How many bytes may still come.
    pub(super) fn bytes_left(&self) -> u64 {
        self.left.bytes
    }

    /// Applies the tar file of one layer.
    pub fn apply(&mut self, layer: impl Read) -> Result<(), OciError> {
        let bounds = Bounds { members: self.left.members, bytes: self.left.bytes };
        // What this layer brought: its own deletions do not concern it.
        let mut brought = HashSet::new();
        let (mut members, mut bytes) = (0, 0);
        each(layer, bounds, |member, content| {
            members += 1;
            bytes += member.size;
            self.take(member, content, &mut brought)
        })?;
        self.left.members -= members;
        self.left.bytes -= bytes;
        Ok(())
    }

    fn take(
        &self,
        member: &Member,
        content: &mut dyn Read,
        brought: &mut HashSet<Name>,
    ) -> Result<(), OciError> {
        let Some((last, above)) = member.name.0.split_last() else {
            return self.owned(&self.root, member).map_err(|error| self.failed(member, error));
        };
        let refuse = |reason| {
            let name = member.name.joined().to_string_lossy().into_owned();
            OciError::Layer(ArchiveError::Refused { name, reason })
        };
        let parent = self.parent(above).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV => {
                refuse("the way to it leads through a link or a file")
            }
            error => self.failed(member, error),
        })?;
        let bytes = last.as_encoded_bytes();
        let done = if bytes == OPAQUE {
            self.empty(&parent, above, brought)
        } else if let Some(name) = bytes.strip_prefix(WHITEOUT) {
            // `.wh...` would delete the folder above.
            let special = [b"".as_slice(), b".", b".."].contains(&name);
            if special || name.starts_with(WHITEOUT) {
                return Err(refuse("its name is reserved"));
            }
            let name = OsStr::from_encoded(name);
            let mut whole = above.to_vec();
            whole.push(name.clone());
            if brought.contains(&Name(whole)) { Ok(()) } else { remove(&parent, &name) }
        } else {
            // Everything on the way is in use by this layer now.
            for depth in 1..=member.name.0.len() {
                brought.insert(Name(member.name.0[..depth].to_vec()));
            }
            match &member.kind {
                Kind::HardLink(target) => {
                    return self.link(&parent, last, target).map_err(|error| match error {
                        Errno::LOOP | Errno::NOTDIR | Errno::XDEV | Errno::NOENT => {
                            refuse("it is another name of nothing in the image")
                        }
                        Errno::PERM | Errno::INVAL => refuse("it is another name of no file"),
                        error => self.failed(member, error),
                    });
                }
                Kind::Folder => self.folder(&parent, last, member),
                Kind::Link(target) => self.symlink(&parent, last, target, member),
                Kind::File => return self.file(&parent, last, member, content),
            }
        };
        done.map_err(|error| self.failed(member, error))
    }

    /// Opens the folder `above`, making what is missing of it.
    fn parent(&self, above: &[OsString]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        if above.is_empty() {
            return openat(&self.root, ".", flags, Mode::empty());
        }
        let whole = Name(above.to_vec()).joined();
        match openat2(&self.root, &whole, flags, Mode::empty(), BENEATH) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let mut folder = openat(&self.root, ".", flags, Mode::empty())?;
        for part in above {
            match mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
                // Whatever the process's mask is.
                Ok(()) => {
                    let made = openat2(&folder, part, flags, Mode::empty(), BENEATH)?;
                    fchmod(&made, Mode::from_raw_mode(0o755))?;
                    folder = made;
                }
                Err(Errno::EXIST) => {
                    folder = openat2(&folder, part, flags, Mode::empty(), BENEATH)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(folder)
    }

    fn folder(&self, parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Errno> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = match openat(parent, name, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                remove(parent, name)?;
                mkdirat(parent, name, Mode::from_raw_mode(0o700))?;
                openat(parent, name, flags, Mode::empty())?
            }
            Err(error) => return Err(error),
        };
        self.owned(&folder, member)
    }

    fn symlink(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        target: &OsStr,
        member: &Member,
    ) -> Result<(), Errno> {
        remove(parent, name)?;
        symlinkat(target, parent, name)?;
        let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
        chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        utimensat(parent, name, &times(member), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn link(&self, parent: &OwnedFd, name: &OsStr, target: &Name) -> Result<(), Errno> {
        let Some((last, above)) = target.0.split_last() else { return Err(Errno::NOENT) };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let from = if above.is_empty() {
            openat(&self.root, ".", flags, Mode::empty())?
        } else {
            let above = Name(above.to_vec()).joined();
            openat2(&self.root, &above, flags, Mode::empty(), BENEATH)?
        };
        let found = statat(&from, last, AtFlags::SYMLINK_NOFOLLOW)?;
        if rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory {
            return Err(Errno::PERM);
        }
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            // A file that is linked to itself.
            Ok(there) if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino) => {
                return Ok(());
            }
            Ok(_) => remove(parent, name)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        linkat(&from, last, parent, name, AtFlags::empty())
    }

    fn file(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        member: &Member,
        content: &mut dyn Read,
    ) -> Result<(), OciError> {
        let failed = |error: Errno| self.failed(member, error);
        remove(parent, name).map_err(failed)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        let file = openat(parent, name, flags | OFlags::CLOEXEC, mode).map_err(failed)?;
        let mut file = File::from(file);
        let written = io::copy(content, &mut file).map_err(OciError::io(&self.path))?;
        if written != member.size {
            let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(OciError::Layer(ArchiveError::Unreadable(cut)));
        }
        self.owned(&file, member).map_err(failed)?;
        if let Some(capability) = &member.capability {
            fsetxattr(&file, "security.capability", capability, XattrFlags::empty())
                .map_err(failed)?;
        }
        futimens(&file, &times(member)).map_err(failed)
    }

    /// Gives an open file its owner and mode, in the order in which the system
    /// keeps setuid bits.
    fn owned(&self, file: impl AsFd, member: &Member) -> Result<(), Errno> {
        let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
        fchown(&file, Some(uid), Some(gid))?;
        fchmod(&file, Mode::from_raw_mode(member.mode))
    }

    /// Removes what lower layers have in a folder.
    fn empty(
        &self,
        folder: &OwnedFd,
        above: &[OsString],
        brought: &HashSet<Name>,
    ) -> Result<(), Errno> {
        for entry in rustix::fs::Dir::read_from(folder)? {
            let entry = entry?;
            let name = OsStr::from_encoded(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let mut whole = above.to_vec();
            whole.push(name.clone());
            if !brought.contains(&Name(whole)) {
                remove(folder, &name)?;
            }
        }
        Ok(())
    }

    fn failed(&self, member: &Member, error: Errno) -> OciError {
        // The name of the member is the archive's; the path is ours.
        tracing::debug!(member = ?member.name, %error, "a member could not be unpacked");
        OciError::io(&self.path)(error.into())
    }
}

/// Removes whatever has this name, if anything has. Follows nothing.
fn remove(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {
            // The parent is named by its descriptor, so nothing on the way to it
            // can be another than the one that was opened.
            let path = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name);
            fs::remove_dir_all(path)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
        Err(error) => Err(error),
    }
}

fn times(member: &Member) -> Timestamps {
    let at = Timespec { tv_sec: i64::try_from(member.modified).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}

/// Bytes of a name as the system has it.
trait Encoded {
    fn from_encoded(bytes: &[u8]) -> OsString;
}

impl Encoded for OsStr {
    fn from_encoded(bytes: &[u8]) -> OsString {
        use std::os::unix::ffi::OsStrExt as _;
        OsStr::from_bytes(bytes).to_owned()
    }
}
