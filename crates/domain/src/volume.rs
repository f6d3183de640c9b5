//! Volumes: their names, sizes and places, and the states they pass through.

use std::{fmt, str::FromStr};

use crate::id::VolumeId;

/// The name of a volume, unique in its organisation: 1 to 63 characters,
/// lower-case letters, digits, `.` and `-`, beginning with a letter or digit.
///
/// No name is an id: those hold an underscore.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeName(String);

/// A volume as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeRef {
    /// By its id.
    Id(VolumeId),
    /// By its name.
    Name(VolumeName),
}

/// The size of a volume in MiB: [`VolumeSize::MIN`] to [`VolumeSize::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeSize(u32);

/// Where a volume is mounted: an absolute path, in a form that has no other
/// spelling, outside of what the system itself needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MountPath(String);

/// Why a text is no name, size or place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVolume {
    /// Not a name.
    #[error("a volume's name is 1 to 63 characters a-z, 0-9, '.' or '-'")]
    Name,
    /// Not a size.
    #[error("a volume has {} to {} MiB", VolumeSize::MIN, VolumeSize::MAX)]
    Size,
    /// Not a path.
    #[error("a volume's place is an absolute path such as /persist, without '.', '..' and '//'")]
    Path,
    /// A path of the system.
    #[error("a volume cannot be mounted over {0}, which the system needs; use /persist")]
    System(String),
}

impl VolumeName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = InvalidVolume;

    fn from_str(raw: &str) -> Result<Self, InvalidVolume> {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = raw.len() <= 63
            && raw.chars().next().is_some_and(alphanumeric)
            && raw.chars().all(|c| alphanumeric(c) || matches!(c, '.' | '-'));
        if valid { Ok(Self(raw.to_owned())) } else { Err(InvalidVolume::Name) }
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for VolumeRef {
    type Err = InvalidVolume;

    fn from_str(raw: &str) -> Result<Self, InvalidVolume> {
        match raw.parse() {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => raw.parse().map(Self::Name),
        }
    }
}

impl VolumeSize {
    /// The smallest: a file system needs room for itself.
    pub const MIN: u32 = 16;
    /// The largest.
    pub const MAX: u32 = 512 * 1024;

    /// Checks a number of MiB.
    pub fn mib(mib: u32) -> Result<Self, InvalidVolume> {
        if (Self::MIN..=Self::MAX).contains(&mib) {
            Ok(Self(mib))
        } else {
            Err(InvalidVolume::Size)
        }
    }

    /// In MiB.
    pub fn as_mib(self) -> u32 {
        self.0
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0) * 1024 * 1024
    }
}

impl MountPath {
    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether one of the two is at or below the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        let below = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        below(&self.0, &other.0) || below(&other.0, &self.0)
    }
}

impl Default for MountPath {
    fn default() -> Self {
        Self("/persist".to_owned())
    }
}

impl FromStr for MountPath {
    type Err = InvalidVolume;

    fn from_str(raw: &str) -> Result<Self, InvalidVolume> {
        const WHOLE: [&str; 12] = [
            "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys",
            "usr",
        ];
        // Folders of which parts may be replaced, but not all.
        const ITSELF: [&str; 6] = ["home", "home/user", "root", "tmp", "var", "workspace"];
        let path = raw.strip_prefix('/').ok_or(InvalidVolume::Path)?;
        let part = |part: &str| {
            !matches!(part, "" | "." | "..")
                && part.len() <= 255
                && !part.chars().any(|c| c.is_control() || c == '\\')
        };
        if raw.len() > 1024 || !path.split('/').all(part) {
            return Err(InvalidVolume::Path);
        }
        let first = path.split('/').next().unwrap_or_default();
        if WHOLE.contains(&first) || ITSELF.contains(&path) {
            return Err(InvalidVolume::System(raw.to_owned()));
        }
        Ok(Self(raw.to_owned()))
    }
}

impl fmt::Display for MountPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes a word of the store and of every surface.
macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $state:ident => $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$each])* $state),* }

        impl $name {
            /// The word used on every surface and in the store.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$state => $word),* }
            }
        }

        impl FromStr for $name {
            type Err = UnknownState;

            fn from_str(raw: &str) -> Result<Self, UnknownState> {
                match raw {
                    $($word => Ok(Self::$state),)*
                    _ => Err(UnknownState),
                }
            }
        }
    };
}

/// A word that names no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such state")]
pub struct UnknownState;

states! {
    /// Where a volume or a checkpoint is in its life.
    KeptState {
        /// Being made. Not usable yet.
        Making => "making",
        /// Whole and usable.
        Ready => "ready",
        /// It could not be made; the reason is beside it. Only to be deleted.
        Failed => "failed",
        /// Being removed.
        Deleting => "deleting",
    }
}

states! {
    /// How far an attachment has come.
    AttachmentState {
        /// Begun: the machine may have the disk, nobody was told so.
        Attaching => "attaching",
        /// Mounted in the sandbox.
        Attached => "attached",
        /// Being taken out.
        Detaching => "detaching",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_an_id_and_no_path() {
        assert_eq!("data-1.x".parse::<VolumeName>().map(|name| name.0), Ok("data-1.x".into()));
        for raw in ["", "-a", "A", "a/b", "..", "vol_aaaaaaaaaaaaaaaaaaaaaaaaaa", "a b"] {
            assert!(raw.parse::<VolumeName>().is_err(), "{raw:?}");
        }
        let id = VolumeId::from_random([3; 16]);
        assert_eq!(id.as_str().parse(), Ok(VolumeRef::Id(id)));
        assert!(matches!("data".parse(), Ok(VolumeRef::Name(_))));
    }

    #[test]
    fn a_place_has_one_spelling_and_is_not_the_systems() {
        for raw in ["/persist", "/workspace/data", "/home/user/x", "/mnt/a b/c", "/var/lib/pg"] {
            assert!(raw.parse::<MountPath>().is_ok(), "{raw:?}");
        }
        for raw in ["", "/", "persist", "/a//b", "/a/", "/./a", "/a/..", "/a\n", "//a"] {
            assert_eq!(raw.parse::<MountPath>(), Err(InvalidVolume::Path), "{raw:?}");
        }
        for raw in ["/etc", "/etc/x", "/usr/local", "/proc/1", "/workspace", "/tmp", "/home/user"] {
            assert!(matches!(raw.parse::<MountPath>(), Err(InvalidVolume::System(_))), "{raw:?}");
        }
    }

    #[test]
    fn places_that_hide_each_other_overlap() {
        let path = |raw: &str| raw.parse::<MountPath>().unwrap();
        assert!(path("/persist").overlaps(&path("/persist/a")));
        assert!(path("/persist/a").overlaps(&path("/persist")));
        assert!(path("/persist").overlaps(&path("/persist")));
        assert!(!path("/persist").overlaps(&path("/persist2")));
    }

    #[test]
    fn a_size_is_bounded() {
        assert!(VolumeSize::mib(15).is_err() && VolumeSize::mib(VolumeSize::MAX + 1).is_err());
        assert_eq!(VolumeSize::mib(16).unwrap().bytes(), 16 << 20);
    }

    #[test]
    fn every_state_reads_back() {
        for state in [KeptState::Making, KeptState::Ready, KeptState::Failed, KeptState::Deleting] {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("gone".parse::<AttachmentState>().is_err());
    }
}
