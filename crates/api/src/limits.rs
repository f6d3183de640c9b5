//! What an installation allows, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limits that apply to a token (S81).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Where sandboxes can be placed.
    pub regions: Vec<String>,
    /// What the network can be.
    pub networks: Vec<String>,
    /// The named sizes.
    pub sizes: Vec<Size>,
    /// Bounds of `timeout_seconds` of a sandbox.
    pub timeout_seconds: Bounds,
    /// The most memory one sandbox can have, in MiB.
    pub max_memory_mb: u32,
    /// The most processors one sandbox can have.
    pub max_cpus: u8,
    /// The most sandboxes that can exist at once.
    pub max_sandboxes: u32,
    /// How many exist now.
    pub sandboxes_in_use: u32,
    /// The largest JSON request in bytes.
    pub max_request_bytes: u64,
    /// The largest exec request in bytes, its input included.
    pub max_exec_request_bytes: u64,
    /// The most bytes of each output that exec keeps.
    pub max_output_bytes: u32,
}

/// A named size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Size {
    /// Its name.
    pub name: String,
    /// Processors.
    pub cpus: u8,
    /// Memory in MiB.
    pub memory_mb: u32,
    /// Writable disk in MiB.
    pub disk_mb: u32,
}

/// An allowed range and what is used when nothing is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bounds {
    /// The least.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// What applies when absent.
    pub default: u32,
}
