//! What a host has, what one sandbox takes of it, and what its guest says of
//! itself. The first two are measured by a backend; of the third nothing is
//! believed but that they are numbers.

use std::time::Duration;

use bytes::Bytes;
use domain::id::SandboxId;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use serde::Deserialize;
use tokio::time::timeout;

use crate::{guest, host::Host};

/// How long a guest may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const MOST: usize = 4096;

/// What is left of the place where sandboxes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Processors of the host.
    pub cpus: u32,
    /// Memory of the host.
    pub memory_mib: u64,
    /// Memory that could be used now.
    pub available_mib: u64,
    /// Disk that is free where machines and snapshots are kept.
    pub disk_mib: u64,
}

impl Room {
    /// Of a backend that has no bound of its own.
    pub const UNBOUNDED: Self =
        Self { cpus: u32::MAX, memory_mib: u64::MAX, available_mib: u64::MAX, disk_mib: u64::MAX };
}

/// What one sandbox takes of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Processor time since it was made.
    pub cpu_us: u64,
    /// Memory that is its own, its machine's included.
    pub memory_bytes: u64,
}

/// What a guest says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Inside {
    /// Memory that programs can have.
    #[serde(rename = "mem_total", default)]
    pub memory_total: u64,
    /// How much of it is used.
    #[serde(rename = "mem_used", default)]
    pub memory_used: u64,
    /// Disk that there is.
    #[serde(default)]
    pub disk_total: u64,
    /// How much of it is used.
    #[serde(default)]
    pub disk_used: u64,
    /// Processes and threads of the workload.
    #[serde(default)]
    pub processes: u64,
}

impl Host {
    /// What a guest says of itself, if it does in time. To look is no use.
    pub async fn inside(&self, id: &SandboxId) -> Option<Inside> {
        let asking = async {
            let stream = self.look(id).await.ok()?;
            let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
            let request = Request::get("/metrics").body(body).ok()?;
            let answer = guest::send(stream, request).await.ok()?;
            let (mut body, mut whole) = (answer.into_body(), Vec::new());
            while let Some(frame) = body.frame().await {
                whole.extend_from_slice(&frame.ok()?.into_data().ok()?);
                if whole.len() > MOST {
                    return None;
                }
            }
            serde_json::from_slice(&whole).ok()
        };
        timeout(PATIENCE, asking).await.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G-01: a guest that says nonsense says nothing, and one that says half says
    /// nothing of the rest.
    #[test]
    fn a_guest_is_believed_numbers_only() {
        let read = |text: &str| serde_json::from_str::<Inside>(text).ok();
        assert_eq!(read("{\"processes\":3,\"other\":[]}").map(|it| it.processes), Some(3));
        for text in
            ["", "[]x", "{\"processes\":-1}", "{\"disk_used\":\"1\"}", "{\"mem_used\":1e99}"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
