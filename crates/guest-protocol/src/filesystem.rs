//! Messages of the guest API's `filesystem.Filesystem` service.
//!
//! The wire is that of E2B's in-sandbox daemon in protobuf's JSON mapping:
//! `int64` travels as text, enum values as names, times as RFC 3339.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::process::Empty;

/// Path prefix of the service's methods.
pub const SERVICE: &str = "/filesystem.Filesystem/";

/// What an entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileType {
    /// Neither of the others, such as a socket.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    /// A regular file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// A directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A symbolic link whose target does not exist.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// One entry of a directory.
///
/// Name, type and path are required: a guest could otherwise make a host keep
/// a structure of 240 bytes for each `{}` it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// Last component of the path.
    pub name: String,
    /// What it is; for a link, what it points to.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Absolute path.
    pub path: String,
    /// Size in bytes, as text on the wire.
    #[serde(default, with = "text_i64")]
    pub size: i64,
    /// Permission bits.
    #[serde(default)]
    pub mode: u32,
    /// The same as `ls -l` shows them.
    #[serde(default)]
    pub permissions: String,
    /// Name of the owner, or the number if there is no name.
    #[serde(default)]
    pub owner: String,
    /// Name of the group, likewise.
    #[serde(default)]
    pub group: String,
    /// RFC 3339.
    #[serde(default)]
    pub modified_time: String,
    /// For a link: the resolved absolute target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// Whether it is a symbolic link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_symlink: bool,
    /// What was given in `X-Metadata-*` headers at upload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// `Stat`, `MakeDir`, `Remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRequest {
    /// Absolute, or relative to the user's home; `~` is the home.
    pub path: String,
}

/// `ListDir`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirRequest {
    /// The directory.
    pub path: String,
    /// Levels to descend; 0 means 1.
    pub depth: u32,
}

/// `Move`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveRequest {
    /// What to move.
    pub source: String,
    /// Its new path; missing parents are made.
    pub destination: String,
}

/// The answer of `Stat`, `MakeDir` and `Move`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryResponse {
    /// The entry.
    pub entry: EntryInfo,
}

/// The answer of `ListDir`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirResponse {
    /// In walk order, names sorted.
    pub entries: Vec<EntryInfo>,
}

/// `WatchDir` (a stream) and `CreateWatcher`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WatchRequest {
    /// The directory.
    pub path: String,
    /// Whether to follow sub-directories, new ones included.
    pub recursive: bool,
    /// Whether each event carries its entry.
    pub include_entry: bool,
}

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// It appeared.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// Its content changed.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// It is gone.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// It was renamed away.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Its attributes changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

/// A change below a watched directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemEvent {
    /// Path relative to the watched directory.
    pub name: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The entry, where it was asked for and still exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// One message of `WatchDir`: the one field that is present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchMessage {
    /// The first: from now on nothing is missed.
    Start(Empty),
    /// A change.
    Filesystem(Box<FilesystemEvent>),
    /// Nothing.
    Keepalive(Empty),
}

/// The answer of `CreateWatcher`, and what names a watcher afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Watcher {
    /// The watcher's id.
    pub watcher_id: String,
}

/// The answer of `GetWatcherEvents`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatcherEvents {
    /// What happened since the last call.
    pub events: Vec<FilesystemEvent>,
}

/// What an upload answers, one for each file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteInfo {
    /// Absolute path.
    pub path: String,
    /// Last component.
    pub name: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What was given in `X-Metadata-*` headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// `int64` in protobuf's JSON mapping: written as text, read as either.
mod text_i64 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(value: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_looks_as_the_clients_expect() {
        let entry =
            EntryInfo { name: "a".into(), size: 5, kind: FileType::File, ..Default::default() };
        let json = serde_json::to_value(&entry).unwrap();
        assert_eq!(json["size"], "5");
        assert_eq!(json["type"], "FILE_TYPE_FILE");
        assert_eq!(serde_json::from_value::<EntryInfo>(json).unwrap(), entry);
    }

    /// TM8: what a host keeps is in proportion to what it was sent.
    #[test]
    fn an_entry_without_a_name_is_refused() {
        assert!(serde_json::from_str::<ListDirResponse>(r#"{"entries":[{},{}]}"#).is_err());
        let least = r#"{"name":"a","type":"FILE_TYPE_FILE","path":"/a"}"#;
        assert!(serde_json::from_str::<EntryInfo>(least).is_ok());
    }

    #[test]
    fn watch_messages_look_as_the_clients_expect() {
        let start = serde_json::to_string(&WatchMessage::Start(Empty {})).unwrap();
        assert_eq!(start, r#"{"start":{}}"#);
    }
}
