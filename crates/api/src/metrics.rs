//! How busy a sandbox is, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// The samples of a sandbox, oldest first; the last one is of now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// At most those of the last ten minutes, about four a minute.
    pub samples: Vec<Sample>,
}

/// How busy a sandbox was at a moment. What could not be measured is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// When.
    pub time: Time,
    /// Processor use since the sample before; 100 is one processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Processor time since the machine was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// Memory that the machine takes of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
    /// Memory that its programs use, as its guest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// How much of it they can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Disk that is used, as its guest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_used_bytes: Option<u64>,
    /// How much of it there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_total_bytes: Option<u64>,
    /// Its processes and threads, as its guest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}
