//! Volumes and their checkpoints on the wire.

use domain::id::{CheckpointId, SandboxId, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// A volume to make: an empty one of a size, or one with a checkpoint's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name: 1 to 63 characters a-z, 0-9, `.` or `-`.
    #[schema(example = "data")]
    pub name: String,
    /// Its size in MiB. With `checkpoint`, that of the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 1024)]
    pub size_mb: Option<u32>,
    /// Where it must live; the installation's region if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The id of the checkpoint to restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id.
    #[schema(value_type = String, example = "vol_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: VolumeId,
    /// Its name, unique in the organisation.
    pub name: String,
    /// `making`, `ready`, `failed` or `deleting`.
    #[schema(example = "ready")]
    pub state: String,
    /// Why it could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Its size in MiB.
    pub size_mb: u32,
    /// What it takes of the host's disk now.
    pub used_bytes: u64,
    /// Where it and its checkpoints live.
    pub region: String,
    /// The checkpoint that it was restored from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub checkpoint: Option<CheckpointId>,
    /// The sandbox that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Attachment>,
    /// When it was asked for.
    pub created_at: Time,
}

/// Which sandbox has a volume, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// The sandbox.
    #[schema(value_type = String, example = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub sandbox: SandboxId,
    /// Where it is mounted.
    #[schema(example = "/persist")]
    pub path: String,
    /// `attaching`, `attached` or `detaching`.
    #[schema(example = "attached")]
    pub state: String,
}

/// A volume for a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Its name or id.
    #[schema(example = "data")]
    pub volume: String,
    /// Where to mount it; `/persist` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "/persist")]
    pub path: Option<String>,
}

/// A checkpoint of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Its id.
    #[schema(value_type = String, example = "chk_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: CheckpointId,
    /// Of which volume.
    #[schema(value_type = String, example = "vol_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub volume: VolumeId,
    /// `making`, `ready`, `failed` or `deleting`.
    #[schema(example = "ready")]
    pub state: String,
    /// Why it could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The size of the volume in MiB.
    pub size_mb: u32,
    /// How much a restore reads.
    pub data_bytes: u64,
    /// How much of that no earlier checkpoint of the volume had kept.
    pub stored_bytes: u64,
    /// Where it lives.
    pub region: String,
    /// When it was asked for.
    pub created_at: Time,
    /// When it was whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
