//! Captures a sandbox's machine into a snapshot.
//!
//! ```text
//!  stop ─ link at rest ─ devices ─ memory ─┬─ go on ─ flush ─ rename   (continue)
//!                                          └───────── flush ─ rename   (hold)
//! ```
//!
//! The machine stands still while its memory is read and sealed, not while it is
//! flushed. Whatever goes wrong before the rename, the machine goes on and no
//! snapshot is left; if this process is killed, the next one finds a machine
//! that stands still and lets it go on, and a snapshot that is not whole.

use std::{io, sync::Arc};

use sandbox::backend::{BackendError, Captured, Sealed, Then};
use tracing::{info, warn};

use super::{
    machine::Machine,
    memory::Memory,
    micros,
    record::{Process, Record},
    snapshot::{Bound, Snapshots, disk},
    template::blocking,
};

/// A machine to capture.
#[derive(Debug)]
pub(super) struct Order {
    machine: Arc<Machine>,
    process: Process,
    bound: Bound,
    to: Sealed,
    then: Then,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

impl Order {
    /// What the record of a machine says about capturing it.
    pub(super) fn new(
        machine: Arc<Machine>,
        record: Record,
        to: &Sealed,
        then: Then,
    ) -> Result<Self, BackendError> {
        let process = record.process.ok_or(BackendError::NotFound)?;
        let bound = record.bound.ok_or(BackendError::Unsupported(
            "the machine was made by a version that could not capture it; make it again",
        ))?;
        Ok(Self { machine, process, bound, to: to.clone(), then })
    }

    /// Captures the machine. To be run to its end, whoever waits.
    pub(super) async fn run(self, snapshots: &Snapshots) -> Result<Captured, BackendError> {
        let failed = |source: Cause| BackendError::failed("capturing the machine", source);
        let turn = snapshots.turn(&self.to.id).await;
        let existing = snapshots.existing(&self.to.id).await;
        if let Some(existing) = existing.map_err(|error| failed(error.into()))? {
            return Ok(existing);
        }
        let captured = self.stop_and_write(snapshots).await;
        if captured.is_err() {
            if let Err(error) = self.machine.proceed().await {
                warn!(%error, "a machine does not go on after a capture that failed");
            }
            let (folder, id) = (snapshots.folder().to_owned(), self.to.id.clone());
            // What stays is listed, and removed by whoever forgets it.
            blocking(move || disk::forget(&folder, &id)).await.unwrap_or_default();
        }
        drop(turn);
        captured.map_err(failed)
    }

    async fn stop_and_write(&self, snapshots: &Snapshots) -> Result<Captured, Cause> {
        let begun = std::time::Instant::now();
        let still = self.machine.stand_still().await?;
        let devices = still.devices().await?;
        let devices_us = micros(begun);
        let (folder, to) = (snapshots.folder().to_owned(), self.to.clone());
        let (process, bound) = (self.process.clone(), self.bound.clone());
        let write = move || {
            let memory = Memory::of(&process, bound.memory_bytes())?;
            disk::write(&folder, &to, bound, &memory, devices)
        };
        let draft = blocking(write).await?;
        if self.then == Then::Continue {
            self.machine.proceed().await?;
        }
        drop(still);
        let still_us = micros(begun);
        let captured = blocking(move || -> io::Result<Captured> { draft.finish() }).await?;
        info!(
            snapshot.id = %self.to.id,
            captured.memory_bytes,
            captured.stored_bytes,
            devices_us,
            still_us,
            total_us = micros(begun),
            "captured a machine into snapshot {}", self.to.id,
        );
        Ok(captured)
    }
}
