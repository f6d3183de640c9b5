//! What a server does when it comes back.
//!
//! The store says what there should be, the backend what there is:
//!
//! | on record            | is done                                          |
//! |----------------------|--------------------------------------------------|
//! | provisioning         | removed, recorded as failed                      |
//! | running              | taken over; if its machine is gone, its driver   |
//! |                      | finds out and records it                         |
//! | to be removed        | removed, recorded with the wish as its cause     |
//! | nothing              | removed                                          |
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
use store::sandboxes::Sandbox;

use crate::{Control, error::Error};

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
        let rows = self.store().live_sandboxes().await?;
        let known: Vec<SandboxId> = rows
            .iter()
            .filter(|row| !matches!(fate(row), Fate::End(_)))
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
                    self.host().adopt(row.id, row.expires);
                    recovered.adopted += 1;
                }
                Fate::Keep => {}
                Fate::End(ending) => {
                    self.record_ending(&row.id, &ending).await?;
                    recovered.ended += 1;
                }
            }
        }
        self.recover_volumes().await?;
        Ok(recovered)
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
