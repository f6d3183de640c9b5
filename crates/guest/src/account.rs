//! Accounts, read from `/etc/passwd` and `/etc/group` by ourselves.
//!
//! The files belong to the workload once it can become root, so reading them is
//! bounded and never waits: a pipe put in their place is an error.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// More than any real account file.
const MAX_FILE: u64 = 1024 * 1024;
/// The kernel's own limit is 65536; a list that long is an accident or an attack.
const MAX_GROUPS: usize = 256;

/// A line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

/// What is in the account files now.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

/// What the account files said, for as long as they have not changed.
///
/// Reading and searching them is a good part of starting a program in an
/// emulated machine, and they hardly ever change.
#[derive(Debug)]
pub(crate) struct Known {
    /// The account file and the group file.
    files: [&'static str; 2],
    version: Option<Version>,
    account: Account,
    groups: Vec<u32>,
}

/// Which files, and when each changed.
type Version = [(u64, u64, i64, i64, u64); 2];

impl Known {
    /// Remembers an account as the files have it now.
    pub(crate) fn of(uid: u32) -> Option<Self> {
        Self::read([PASSWD, GROUP], uid)
    }

    fn read(files: [&'static str; 2], uid: u32) -> Option<Self> {
        // Taken before the reading: a change in between is one that is noticed.
        let version = version(files);
        let accounts = Accounts::read_from(files).ok()?;
        let account = accounts.by_uid(uid)?;
        let groups = accounts.groups_of(&account);
        Some(Self { files, version, account, groups })
    }

    /// What is remembered of `uid`, if it still holds.
    pub(crate) fn recall(&self, uid: u32) -> Option<(Account, Vec<u32>)> {
        let same = self.version.is_some() && self.version == version(self.files);
        (self.account.uid == uid && same).then(|| (self.account.clone(), self.groups.clone()))
    }
}

fn version(files: [&str; 2]) -> Option<Version> {
    use std::os::unix::fs::MetadataExt as _;
    let of = |path: &str| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino(), file.ctime(), file.ctime_nsec(), file.size()))
    };
    Some([of(files[0])?, of(files[1])?])
}

/// Finds an account by its name, without a look at the groups.
pub(crate) fn find(name: &str) -> io::Result<Option<Account>> {
    let accounts = Accounts { passwd: read_bounded(Path::new(PASSWD))?, group: String::new() };
    Ok(accounts.by_name(name))
}

impl Accounts {
    /// Reads both files. A missing group file means no groups.
    pub(crate) fn read() -> io::Result<Self> {
        Self::read_from([PASSWD, GROUP])
    }

    fn read_from([passwd, group]: [&str; 2]) -> io::Result<Self> {
        Ok(Self {
            passwd: read_bounded(Path::new(passwd))?,
            group: read_bounded(Path::new(group)).unwrap_or_default(),
        })
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<Account> {
        self.passwd.lines().filter_map(account).find(|account| account.name == name)
    }

    pub(crate) fn by_uid(&self, uid: u32) -> Option<Account> {
        self.passwd.lines().filter_map(account).find(|account| account.uid == uid)
    }

    /// The name of a group, if it has one.
    pub(crate) fn group_name(&self, gid: u32) -> Option<&str> {
        self.group.lines().filter_map(group).find(|(_, id, _)| *id == gid).map(|(name, ..)| name)
    }

    /// Every group of an account, its own first.
    pub(crate) fn groups_of(&self, account: &Account) -> Vec<u32> {
        let mut groups = vec![account.gid];
        for (_, gid, members) in self.group.lines().filter_map(group) {
            let member = members.split(',').any(|member| member == account.name);
            if member && !groups.contains(&gid) && groups.len() < MAX_GROUPS {
                groups.push(gid);
            }
        }
        groups
    }
}

/// Reads a small regular file without ever waiting for a writer.
pub(crate) fn read_bounded(path: &Path) -> io::Result<String> {
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a file", path.display())));
    }
    // One read for what such files usually hold: the reader doubles from 32 bytes
    // otherwise, and every call is dear in an emulated machine.
    let mut bytes = Vec::with_capacity(8 * 1024);
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn account(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, _] = fields.as_slice() else { return None };
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    Some(Account {
        name: (*name).to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: if home.starts_with('/') { (*home).to_owned() } else { "/".to_owned() },
    })
}

fn group(line: &str) -> Option<(&str, u32, &str)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, gid, members] = fields.as_slice() else { return None };
    Some((name, gid.parse().ok()?, members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_remembered_until_a_file_changes() {
        let folder =
            std::env::temp_dir().join(format!("coldframe-accounts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path =
            |name: &str| -> &'static str { folder.join(name).to_str().unwrap().to_owned().leak() };
        let files = [path("passwd"), path("group")];
        std::fs::write(files[0], "user:x:1000:1000::/home/user:/bin/sh\n").unwrap();
        std::fs::write(files[1], "sudo:x:27:user\n").unwrap();
        let known = Known::read(files, 1000).unwrap();
        assert_eq!(known.recall(1000).unwrap().1, [1000, 27]);
        assert!(known.recall(0).is_none());
        std::fs::write(files[1], "sudo:x:27:\n").unwrap();
        assert!(known.recall(1000).is_none(), "a group that was taken away is still used");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/bash\n\
                     broken:x:1\n\
                     nohome:x:7:7:::/bin/sh\n\
                     user:x:1000:1001:,,,:/home/user:/bin/bash\n\
                     twice:x:1000:1:::/bin/sh"
                .into(),
            group: "root:x:0:\nuser:x:1001:\nsudo:x:27:other,user\nbad:x:none:user\n\
                    usersmith:x:9:usersmith"
                .into(),
        }
    }

    #[test]
    fn an_account_is_found_by_name_and_by_number() {
        let user = accounts().by_name("user").unwrap();
        assert_eq!((user.uid, user.gid, user.home.as_str()), (1000, 1001, "/home/user"));
        assert_eq!(accounts().by_uid(1000), Some(user));
        assert_eq!(accounts().by_name("nobody"), None);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_no_account() {
        assert_eq!(accounts().by_name("broken"), None);
        assert_eq!(accounts().by_name(""), None);
        assert_eq!(accounts().by_name("nohome").unwrap().home, "/");
    }

    #[test]
    fn groups_are_the_own_one_and_those_that_list_the_name() {
        let user = accounts().by_name("user").unwrap();
        assert_eq!(accounts().groups_of(&user), [1001, 27]);
        assert_eq!(accounts().group_name(27), Some("sudo"));
    }

    /// A pipe in place of a file must not hang whoever reads it.
    #[test]
    fn a_pipe_is_not_an_account_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwd");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0)
            .unwrap();
        assert!(read_bounded(&path).is_err());
    }
}
