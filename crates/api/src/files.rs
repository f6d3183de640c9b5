//! Files of a sandbox on the wire. Content travels as raw bytes (U31), not here.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    /// A path inside the sandbox: absolute, or relative to the account's home.
    pub path: String,
    /// The account whose rights apply; `user` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// The answer to a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Written {
    /// Absolute path of the file.
    pub path: String,
    /// Bytes written.
    pub size: u64,
}

/// A directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Directory {
    /// What is in it, sorted by name; not what is further down.
    pub entries: Vec<Entry>,
}

/// One entry of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Last component of the path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`; for a link, what it points to.
    #[serde(rename = "type")]
    #[schema(example = "file")]
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Permissions as `ls -l` shows them.
    pub permissions: String,
    /// Name of the owner.
    pub owner: String,
    /// Name of the group.
    pub group: String,
    /// RFC 3339, as the sandbox gives it.
    pub modified_at: String,
    /// For a link: the resolved target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}
