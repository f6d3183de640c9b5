//! Images on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An image that sandboxes can start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Its name, which is what `template` takes.
    #[schema(example = "base")]
    pub name: String,
    /// Digest of its signed manifest.
    pub digest: String,
    /// The distribution release inside, such as `bookworm`.
    pub release: String,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// Whether it verifies, so that sandboxes may start from it.
    pub ready: bool,
}
