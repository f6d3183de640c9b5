//! What a tree of files needs to be the root of a sandbox.
//!
//! The guest finds accounts in `/etc/passwd` and works as uid 1000; a person's
//! programs expect to find themselves there, and a home. Everything else that a
//! sandbox needs the guest makes at its start.
//!
//! The tree is an image's, so every file of it is opened from its root, beneath
//! it and through no link. A file is written in place only if it is a regular
//! file, else the image is refused.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::{Read as _, Seek as _, Write as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
};

use domain::image::facts::User;
use rustix::{
    fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, openat2, unlinkat},
    io::Errno,
};

use crate::oci::unpack::BENEATH;

/// The account that processes run as.
pub(super) const USER: &str = "user";
const USER_ID: u32 = 1000;
/// The guest's own accounts, so that nothing else takes their numbers.
const DAEMONS: [(&str, u32); 2] = [("coldframe-api", 990), ("coldframe-relay", 991)];
/// More than any real account file.
const MAX_FILE: u64 = 1 << 20;

/// What was found and made.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) user: User,
    pub(super) setuid: BTreeSet<String>,
}

/// Account files with what a sandbox needs in them.
#[derive(Debug, PartialEq, Eq)]
struct Accounts {
    passwd: String,
    group: String,
    user: User,
}

/// Makes `tree` the root of a sandbox.
///
/// # Errors
/// A sentence that says what about the image is in the way.
pub(super) fn prepare(tree: &Path) -> Result<Prepared, String> {
    let root = rustix::fs::open(tree, FOLDER, Mode::empty()).map_err(|error| error.to_string())?;
    let etc = folder(&root, "etc", 0, 0o755)?;
    let passwd = text(&etc, "passwd")?.unwrap_or_default();
    let group = text(&etc, "group")?.unwrap_or_default();
    let shell = ["bin/bash", "usr/bin/bash"].iter().any(|path| tree.join(path).is_file());
    let shell = if shell { "/bin/bash" } else { "/bin/sh" };
    let accounts = accounts(&passwd, &group, shell)?;
    write(&etc, "passwd", &accounts.passwd)?;
    write(&etc, "group", &accounts.group)?;
    if let Some(mut shadow) = text(&etc, "shadow")?
        && !shadow.lines().any(|line| line.starts_with("user:"))
    {
        // No password; `*` matches none.
        ended(&mut shadow);
        shadow.push_str("user:*:1:0:99999:7:::\n");
        write(&etc, "shadow", &shadow)?;
    }
    let home = accounts.user.home.trim_start_matches('/');
    let mut above = root.try_clone().map_err(|error| error.to_string())?;
    let parts: Vec<_> = home.split('/').filter(|part| !part.is_empty()).collect();
    for (index, part) in parts.iter().enumerate() {
        let owner = if index + 1 == parts.len() { USER_ID } else { 0 };
        above = folder(&above, part, owner, 0o755)?;
    }
    if let Ok(sudoers) = openat2(&etc, "sudoers.d", FOLDER, Mode::empty(), BENEATH) {
        fresh(&sudoers, USER, "user ALL=(ALL:ALL) NOPASSWD:ALL\n", 0o440)?;
    }
    // Names are looked up at the guest's own resolver, where there is one.
    fresh(&etc, "resolv.conf", "nameserver 127.0.0.1\n", 0o644)?;
    let mut setuid = BTreeSet::new();
    find_setuid(tree, tree, &mut setuid)?;
    Ok(Prepared { user: accounts.user, setuid })
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

/// Adds the accounts that a sandbox has.
fn accounts(passwd: &str, group: &str, shell: &str) -> Result<Accounts, String> {
    let field = |line: &str, at: usize| line.split(':').nth(at).unwrap_or_default().to_owned();
    let id = |line: &str| field(line, 2).parse::<u32>().ok();
    let named = |name: &str| passwd.lines().find(|line| field(line, 0) == name);
    if named(USER).is_some_and(|line| id(line) != Some(USER_ID)) {
        return Err(format!("its account {USER:?} has another number than {USER_ID}"));
    }
    let (mut new_passwd, mut new_group) = (String::new(), String::new());
    if named("root").is_none() {
        new_passwd.push_str(&format!("root:x:0:0:root:/root:{shell}\n"));
    }
    let known = passwd.lines().find(|line| id(line) == Some(USER_ID));
    // Where the number has another name already, both names are of one person,
    // and ours comes first: it is what the number is called by.
    let (home, gid) = match known {
        Some(line) => {
            let home = Some(field(line, 5))
                .filter(|home| home.starts_with('/') && !home.split('/').any(|part| part == ".."));
            let gid = field(line, 3).parse().unwrap_or(USER_ID);
            (home.unwrap_or_else(|| format!("/home/{USER}")), gid)
        }
        None => (format!("/home/{USER}"), USER_ID),
    };
    let own_shell = known.map(|line| field(line, 6)).filter(|shell| shell.starts_with('/'));
    let shell = own_shell.unwrap_or_else(|| shell.to_owned());
    if named(USER).is_none() {
        new_passwd.push_str(&format!("{USER}:x:{USER_ID}:{gid}::{home}:{shell}\n"));
    }
    new_passwd.push_str(passwd);
    new_group.push_str(group);
    ended(&mut new_passwd);
    ended(&mut new_group);
    for (name, number) in DAEMONS {
        if named(name).is_none() && !passwd.lines().any(|line| id(line) == Some(number)) {
            let line = format!("{name}:x:{number}:{number}::/nonexistent:/usr/sbin/nologin\n");
            new_passwd.push_str(&line);
        }
    }
    for (name, number) in [(USER, gid)].into_iter().chain(DAEMONS) {
        let taken = |line: &str| field(line, 0) == name || id(line) == Some(number);
        if !group.lines().any(taken) {
            new_group.push_str(&format!("{name}:x:{number}:\n"));
        }
    }
    let user = User { name: USER.to_owned(), id: USER_ID, home, shell };
    Ok(Accounts { passwd: new_passwd, group: new_group, user })
}

fn ended(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Opens a folder, making it if it is not there.
fn folder(above: &OwnedFd, name: &str, owner: u32, mode: u32) -> Result<OwnedFd, String> {
    let made = match mkdirat(above, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(format!("{name}: {error}")),
    };
    let opened = openat2(above, name, FOLDER, Mode::empty(), BENEATH);
    let opened = opened.map_err(|_| format!("{name} is no folder in it"))?;
    if made {
        fchown(&opened, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))
            .and_then(|()| fchmod(&opened, Mode::from_raw_mode(mode)))
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(opened)
}

/// The content of a file of `etc`, or nothing if it is not there.
fn text(etc: &OwnedFd, name: &str) -> Result<Option<String>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(etc, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(_) => return Err(format!("/etc/{name} is no file")),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(format!("/etc/{name} is no file, or too long"));
    }
    let mut text = String::new();
    let read = file.take(MAX_FILE).read_to_string(&mut text);
    read.map_err(|_| format!("/etc/{name} is no text"))?;
    Ok(Some(text))
}

/// Writes a file of `etc` in place, so that it keeps its owner and its mode.
fn write(etc: &OwnedFd, name: &str, text: &str) -> Result<(), String> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let written = || {
        let mut file = File::from(openat(etc, name, flags, Mode::from_raw_mode(0o644))?);
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(text.as_bytes())
    };
    written().map_err(|error: std::io::Error| format!("/etc/{name}: {error}"))
}

/// Makes a file of root's, in the place of whatever has its name.
fn fresh(folder: &OwnedFd, name: &str, text: &str, mode: u32) -> Result<(), String> {
    let made = || {
        match unlinkat(folder, name, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(folder, name, flags, Mode::from_raw_mode(0o600))?);
        file.write_all(text.as_bytes())?;
        Ok(fchmod(&file, Mode::from_raw_mode(mode))?)
    };
    made().map_err(|error: std::io::Error| format!("{name}: {error}"))
}

/// Every file with a setuid or setgid bit, as the sandbox sees it.
fn find_setuid(tree: &Path, folder: &Path, found: &mut BTreeSet<String>) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let metadata = path.symlink_metadata().map_err(failed)?;
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() && metadata.mode() & 0o6000 != 0 {
                let inside = path.strip_prefix(tree).map(Path::as_os_str).unwrap_or(OsStr::new(""));
                found.insert(format!("/{}", inside.to_string_lossy()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U38: the person of a sandbox is there, whatever the image has.
    #[test]
    fn an_image_without_the_account_gets_it() {
        let made = accounts("root:x:0:0:root:/root:/bin/sh", "root:x:0:", "/bin/sh").unwrap();
        assert!(
            made.passwd.contains("\nuser:x:1000:1000::/home/user:/bin/sh\n")
                || made.passwd.starts_with("user:x:1000:1000::/home/user:/bin/sh\n")
        );
        assert!(made.passwd.contains("root:x:0:0:root:/root:/bin/sh\n"));
        assert!(made.group.contains("root:x:0:\nuser:x:1000:\n"));
        let empty = accounts("", "", "/bin/sh").unwrap();
        assert!(empty.passwd.starts_with("root:x:0:0:"));
    }

    #[test]
    fn a_number_with_another_name_gets_ours_first() {
        let passwd = "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/bash\n";
        let made = accounts(passwd, "node:x:1000:\n", "/bin/sh").unwrap();
        assert!(made.passwd.starts_with("user:x:1000:1000::/home/node:/bin/bash\n"));
        assert_eq!(made.user.home, "/home/node");
        assert!(!made.group.contains("user:x:1000"));
        assert!(accounts("user:x:33:33::/:/bin/sh\n", "", "/bin/sh").is_err());
    }

    #[test]
    fn accounts_that_are_there_stay_as_they_are() {
        let once = accounts("root:x:0:0::/root:/bin/sh\n", "", "/bin/sh").unwrap();
        let twice = accounts(&once.passwd, &once.group, "/bin/sh").unwrap();
        assert_eq!((twice.passwd, twice.group), (once.passwd, once.group));
    }

    /// Z-02: what an image has in the place of a file is not followed.
    #[test]
    fn a_link_in_the_place_of_a_file_is_not_written_through() {
        let place = tempfile::tempdir().unwrap();
        let victim = place.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        for (what, target) in [("etc/passwd", "../../victim"), ("etc", "..")] {
            let tree = tempfile::tempdir_in(place.path()).unwrap();
            if what != "etc" {
                fs::create_dir(tree.path().join("etc")).unwrap();
            }
            std::os::unix::fs::symlink(target, tree.path().join(what)).unwrap();
            assert!(prepare(tree.path()).is_err(), "{what}");
        }
        assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
        assert!(!place.path().join("passwd").exists());
    }
}
