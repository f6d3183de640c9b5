//! What a server does when it comes back.
//!
//! The store says what there should be, the backend what there is:
//!
//! | on record            | is done                                          |
//! |----------------------|--------------------------------------------------|
//! | provisioning         | removed, recorded as failed                      |
//! | running              | taken over; if its machine is gone, its driver   |
//! |                      | finds out and records it                         |
//! | paused               | kept; a machine of it is removed, and a resume   |
//! |                      | that was under way is none                       |
//! | to be removed        | removed, recorded with the wish as its cause     |
//! | nothing              | removed                                          |
//! | snapshot, not whole  | removed                                          |
//! | snapshot of copies   | removed                                          |
//! | snapshot, going      | removed                                          |
//! | snapshot, ready      | kept, also where its files are missing now: they |
//! |                      | may lie on a disk that comes back                |
//!
//! A machine that a kill left standing still is let go on by whoever takes it
//! over. A pause and a resume are each one transaction, so a sandbox that was in
//! the middle of one is on record as one or the other.
//!
//! It runs before the first request is served, so nothing starts meanwhile.
//! Machines are removed before their end is recorded: if this process stops in
//! between, the next one does the same again.

use std::time::Duration;

use domain::{
    ending::{Cause, Ending},
    id::SandboxId,
    phase::Phase,
};
use store::sandboxes::{Moved, Sandbox};

use crate::{
    Control,
    control::detail,
    error::Error,
    sandboxes::deadline,
    snapshots::{Purpose, SnapshotState},
};

/// How long removing what is left may take. What remains after that is the
/// backend's to list and the operator's to see; it does not keep the server down.
const REMOVAL: Duration = Duration::from_secs(120);

/// What was found and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Running sandboxes that were taken over.
    pub adopted: usize,
    /// Sandboxes whose end was recorded.
    pub ended: usize,
    /// Machines that were removed.
    pub removed: usize,
    /// Paused sandboxes that are kept.
    pub paused: usize,
    /// Snapshots that were removed.
    pub forgotten: usize,
    /// Snapshots on record whose files are missing.
    pub missing: usize,
    /// Whether something could not be removed.
    pub leftover: bool,
}

/// What is to become of a live row.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Adopt,
    Keep,
    End(Ending),
}

impl Control {
    /// Makes what there is agree with what is on record.
    pub async fn recover(&self) -> Result<Recovered, Error> {
        self.recover_templates().await?;
        let rows = self.store().live_sandboxes().await?;
        let known: Vec<SandboxId> = rows
            .iter()
            .filter(|row| matches!(fate(row), Fate::Adopt))
            .map(|row| row.id.clone())
            .collect();
        let mut recovered = Recovered::default();
        match tokio::time::timeout(REMOVAL, self.host().remove_unknown(&known)).await {
            Ok(Ok(removed)) => recovered.removed = removed,
            Ok(Err(error)) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "machines that nobody remembers could not be removed",
                );
                recovered.leftover = true;
            }
            Err(_) => {
                tracing::error!("removing machines that nobody remembers took too long");
                recovered.leftover = true;
            }
        }
        for row in rows {
            match fate(&row) {
                Fate::Adopt => {
                    let deadline = deadline(&row);
                    self.host().adopt(row.id, deadline);
                    recovered.adopted += 1;
                }
                Fate::Keep => {
                    self.not_waking(&row).await?;
                    recovered.paused += 1;
                }
                Fate::End(ending) => {
                    self.record_ending(&row.id, &ending).await?;
                    recovered.ended += 1;
                }
            }
        }
        self.recover_volumes().await?;
        self.recover_snapshots(&mut recovered).await?;
        Ok(recovered)
    }

    /// A resume that was under way when the server stopped came to nothing.
    async fn not_waking(&self, row: &Sandbox) -> Result<(), Error> {
        if let Some(snapshot) = self.store().pause_of(&row.id).await?
            && row.rest.waking
        {
            let told = detail([("why", "the server stopped".into())]);
            let mut line = self.observed(&snapshot, "sandbox.resume_failed", told);
            line.object = Some(row.id.to_string());
            match self.store().end_waking(&row.id, &line).await? {
                Moved::Yes | Moved::No => {}
            }
        }
        Ok(())
    }

    async fn recover_snapshots(&self, recovered: &mut Recovered) -> Result<(), Error> {
        let rows = self.store().all_snapshots().await?;
        let mut kept = Vec::new();
        for snapshot in &rows {
            let stays = snapshot.state == SnapshotState::Ready && snapshot.purpose != Purpose::Fork;
            if stays {
                kept.push(&snapshot.id);
                continue;
            }
            self.discard(snapshot, "snapshot.abandoned").await;
            recovered.forgotten += 1;
        }
        let files = match self.host().snapshots().await {
            Ok(files) => files,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the snapshots of this host could not be listed");
                recovered.leftover = true;
                return Ok(());
            }
        };
        for id in files.iter().filter(|id| !rows.iter().any(|row| row.id == **id)) {
            match self.host().forget(id).await {
                Ok(()) => recovered.forgotten += 1,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(snapshot.id = %id, error, "a snapshot that nobody remembers could not be removed");
                    recovered.leftover = true;
                }
            }
        }
        for id in kept.into_iter().filter(|id| !files.contains(id)) {
            tracing::error!(snapshot.id = %id, "the files of a snapshot are missing");
            recovered.missing += 1;
        }
        Ok(())
    }
}

fn fate(row: &Sandbox) -> Fate {
    match (row.phase, row.intent) {
        (_, Some(cause)) => {
            Fate::End(Ending::new(cause, "it was to be removed when the server stopped"))
        }
        (Phase::Provisioning, None) => Fate::End(Ending::new(
            Cause::StartFailed,
            "the server stopped while the sandbox was being made",
        )),
        (Phase::Running, None) => Fate::Adopt,
        // They hold no machine.
        (Phase::Sleeping | Phase::Paused, None) => Fate::Keep,
        // Not read, because they are final.
        (Phase::Terminated | Phase::Failed, None) => Fate::Keep,
    }
}
