//! What is at a path, as clients see it.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use guest_protocol::filesystem::{EntryInfo, FileType};

use super::metadata;
use crate::account::Accounts;

/// Describes the entry at `path`; a link is not followed for its own facts.
pub(crate) fn describe(path: &Path, accounts: &Accounts) -> io::Result<EntryInfo> {
    let own = fs::symlink_metadata(path)?;
    let is_symlink = own.file_type().is_symlink();
    let (kind, symlink_target) = if is_symlink {
        match fs::canonicalize(path) {
            Ok(target) => {
                let kind = fs::metadata(path).map_or(FileType::Symlink, |meta| kind(&meta));
                (kind, Some(target))
            }
            // It points nowhere; where to is still worth knowing.
            Err(_) => (FileType::Symlink, fs::read_link(path).ok()),
        }
    } else {
        (kind(&own), None)
    };
    let mode = own.mode();
    let owner = accounts.by_uid(own.uid()).map_or_else(|| own.uid().to_string(), |a| a.name);
    let group = accounts.group_name(own.gid());
    Ok(EntryInfo {
        name: path.file_name().map_or("/".into(), |name| name.to_string_lossy()).into_owned(),
        kind,
        path: path.to_string_lossy().into_owned(),
        size: own.size().cast_signed(),
        mode: mode & 0o777,
        permissions: permissions(&own),
        owner,
        group: group.map_or_else(|| own.gid().to_string(), str::to_owned),
        modified_time: rfc3339(own.mtime(), own.mtime_nsec()),
        symlink_target: symlink_target.map(|target| target.to_string_lossy().into_owned()),
        is_symlink,
        metadata: if is_symlink { Default::default() } else { metadata::read(path) },
    })
}

fn kind(metadata: &Metadata) -> FileType {
    if metadata.is_dir() {
        FileType::Directory
    } else if metadata.is_file() {
        FileType::File
    } else {
        FileType::Unspecified
    }
}

/// As `ls -l` shows them.
fn permissions(metadata: &Metadata) -> String {
    let file_type = metadata.file_type();
    let first = match () {
        () if file_type.is_dir() => 'd',
        () if file_type.is_symlink() => 'l',
        () if file_type.is_fifo() => 'p',
        () if file_type.is_socket() => 's',
        () if file_type.is_block_device() => 'b',
        () if file_type.is_char_device() => 'c',
        () => '-',
    };
    std::iter::once(first).chain(bits(metadata.mode())).collect()
}

/// Nine letters; a special bit takes the place of an `x`.
fn bits(mode: u32) -> [char; 9] {
    let mut text = ['-'; 9];
    for (index, letter) in ['r', 'w', 'x'].into_iter().cycle().take(9).enumerate() {
        if mode & (0o400 >> index) != 0 {
            text[index] = letter;
        }
    }
    for (index, bit, with, without) in
        [(2, 0o4000, 's', 'S'), (5, 0o2000, 's', 'S'), (8, 0o1000, 't', 'T')]
    {
        if mode & bit != 0 {
            text[index] = if text[index] == 'x' { with } else { without };
        }
    }
    text
}

/// A time in UTC. The calendar repeats every 400 years of 146097 days.
fn rfc3339(seconds: i64, nanos: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Counted from 1 March of year 0, so that a leap day is the last of a year.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, (shifted + 2) % 12 + 1);
    let year = era * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_bits_look_like_those_of_ls() {
        let check = |mode, expected: &str| {
            assert_eq!(bits(mode).iter().collect::<String>(), expected);
        };
        check(0o644, "rw-r--r--");
        check(0o4755, "rwsr-xr-x");
        check(0o1777, "rwxrwxrwt");
        check(0o2640, "rw-r-S---");
        check(0, "---------");
    }

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(951_782_400, 5), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(rfc3339(1_795_970_648, 0), "2026-11-29T16:44:08.000000000Z");
        assert_eq!(rfc3339(-1, 0), "1969-12-31T23:59:59.000000000Z");
    }

    #[test]
    fn a_link_shows_what_it_points_to() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        fs::write(folder.join("file"), "12345").unwrap();
        std::os::unix::fs::symlink("file", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.join("broken")).unwrap();
        let accounts = Accounts::default();
        let link = describe(&folder.join("link"), &accounts).unwrap();
        assert_eq!((link.kind, link.is_symlink), (FileType::File, true));
        assert_eq!(link.symlink_target.unwrap(), folder.join("file").to_string_lossy());
        let broken = describe(&folder.join("broken"), &accounts).unwrap();
        assert_eq!(
            (broken.kind, broken.symlink_target.as_deref()),
            (FileType::Symlink, Some("nowhere"))
        );
        let file = describe(&folder.join("file"), &accounts).unwrap();
        assert_eq!((file.size, file.is_symlink, file.symlink_target), (5, false, None));
    }
}
