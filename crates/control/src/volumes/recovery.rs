//! What a server that comes back does about volumes.
//!
//! | on record            | is done                                           |
//! |----------------------|---------------------------------------------------|
//! | volume `making`      | its file is removed; recorded as failed           |
//! | volume `deleting`    | deleted                                           |
//! | checkpoint `making`  | recorded as failed; the next one uses its chunks  |
//! | checkpoint `deleting`| deleted                                           |
//! | lease `attaching`    | attached, or undone where that fails              |
//! | lease `detaching`    | detached                                          |
//! | nothing              | a file of it is removed                           |
//!
//! What needs a guest or the object store is done by tasks: neither keeps the
//! server down. A volume that was held still is let go by its guest.

use domain::volume::{AttachmentState, KeptState};
use store::volumes::Attachment;

use crate::{
    Control,
    error::Error,
    volumes::{blocking, disk_failed},
};

/// What becomes of something that was under way.
const STOPPED: &str = "the server stopped while it was being made";

impl Control {
    /// Puts in order what an earlier process left. Called before the first
    /// request, after sandboxes were taken over.
    pub async fn recover_volumes(&self) -> Result<(), Error> {
        let Some(volumes) = self.installed_volumes() else { return Ok(()) };
        let rows = self.store().all_volumes().await?;
        let disks = volumes.disks.clone();
        let files = {
            let disks = disks.clone();
            blocking(move || Ok(disks.list()?)).await.map_err(disk_failed)?
        };
        for id in files.into_iter().filter(|id| !rows.iter().any(|row| row.id == *id)) {
            let disks = disks.clone();
            let removed = blocking(move || disks.remove(&id)).await;
            if let Err(error) = removed {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a file of no volume stays"
                );
            }
        }
        for checkpoint in self.store().unsettled_checkpoints().await? {
            if checkpoint.state == KeptState::Making {
                let moved = self.store().fail_checkpoint(&checkpoint.id, STOPPED).await?;
                tracing::info!(checkpoint.id = %checkpoint.id, ?moved, "a checkpoint was cut short");
                continue;
            }
            let control = self.clone();
            self.spawn_recovery("checkpoint", async move {
                control.finish_deleting_checkpoint(&checkpoint).await
            });
        }
        for row in rows {
            match row.state {
                KeptState::Making => {
                    let (disks, id) = (disks.clone(), row.id.clone());
                    blocking(move || disks.remove(&id)).await.map_err(disk_failed)?;
                    let moved = self.store().settle_volume(&row.id, Some(STOPPED)).await?;
                    tracing::info!(volume.id = %row.id, ?moved, "a volume was cut short");
                }
                KeptState::Deleting => {
                    let control = self.clone();
                    self.spawn_recovery(
                        "volume",
                        async move { control.finish_deleting(&row.id).await },
                    );
                }
                KeptState::Ready | KeptState::Failed => {}
            }
        }
        for lease in self.store().attachments().await? {
            self.host().has_volumes(&lease.sandbox);
            if lease.state != AttachmentState::Attached && self.holder_runs(&lease).await? {
                let control = self.clone();
                self.spawn_recovery("lease", async move { control.settle_lease(lease).await });
            }
        }
        Ok(())
    }

    async fn settle_lease(&self, lease: Attachment) -> Result<(), Error> {
        if lease.state == AttachmentState::Detaching {
            return self.finish_detach(&lease).await;
        }
        let Some(volume) = self.store().volume(&lease.volume).await? else { return Ok(()) };
        self.finish_attach(&volume, lease).await.map(drop)
    }

    fn spawn_recovery(
        &self,
        what: &'static str,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        self.tasks().spawn(async move {
            if let Err(error) = work.await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "what was under way with a {what} could not be finished");
            }
        });
    }
}
