//! Snapshots on the wire.

use domain::id::{SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// What to call a snapshot, and how long to keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// 1 to 64 small letters, digits, `.`, `_`, `-`; one in an organisation.
    #[schema(example = "warm-python")]
    pub name: String,
    /// Seconds until it is removed by itself, 60 to 31536000; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u32>,
}

/// A snapshot. It holds everything its sandbox held, secrets in memory included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id.
    #[schema(value_type = String, example = "snp_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: SnapshotId,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `full`: memory and files.
    #[schema(example = "full")]
    pub kind: String,
    /// `making`, `ready` or `going`.
    #[schema(example = "ready")]
    pub state: String,
    /// The sandbox that was captured.
    #[schema(value_type = String)]
    pub sandbox: SandboxId,
    /// The snapshot that sandbox was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub parent: Option<SnapshotId>,
    /// What that sandbox was made of.
    pub template: String,
    /// Digest of the image behind the template.
    pub image_digest: String,
    /// Processors of a sandbox that starts from it.
    pub cpus: u8,
    /// Memory of one, in MiB.
    pub memory_mb: u32,
    /// Where it lies.
    pub region: String,
    /// What it takes on disk.
    pub stored_bytes: u64,
    /// How much memory is in it.
    pub memory_bytes: u64,
    /// When it was asked for.
    pub created_at: Time,
    /// When it is removed by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// A page of snapshots, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotPage {
    /// The snapshots.
    pub items: Vec<Snapshot>,
    /// What to pass as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which snapshots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListSnapshots {
    /// Only those of this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The most items to return, 1 to 200; 50 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
