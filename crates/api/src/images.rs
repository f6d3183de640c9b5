//! Images on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An image that sandboxes can start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Its name, which is what `template` takes.
    #[schema(example = "base")]
    pub name: String,
    /// Digest of its signed manifest; absent when it does not verify.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The distribution release inside, such as `bookworm`; empty when it does
    /// not verify.
    pub release: String,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// Whether it verifies, so that sandboxes may start from it.
    pub ready: bool,
}
