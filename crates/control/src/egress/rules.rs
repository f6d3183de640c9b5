//! The rules of a sandbox, made from what is on record.

use domain::id::SandboxId;
use gateway::rules::{Others, Rules, Session};
use store::{Store, error::StoreError, sandboxes::Sandbox, sessions};

use super::EgressSettings;

/// Rules out of the store, for whoever asks on behalf of the gateway.
#[derive(Clone, Debug)]
pub struct StoreRules {
    store: Store,
    settings: EgressSettings,
}

impl StoreRules {
    /// Rules over `store`, with what the operator opened.
    pub fn new(store: Store, settings: EgressSettings) -> Self {
        Self { store, settings }
    }

    /// The rules of a live sandbox; none for any other.
    pub async fn of(&self, id: &SandboxId) -> Result<Option<Rules>, StoreError> {
        // The sandbox is read before and after its sessions: rules of one
        // generation with the sessions of another would be mixed.
        loop {
            let Some(row) = self.live(id).await? else { return Ok(None) };
            let sessions = self.store.sessions(id).await?;
            let Some(again) = self.live(id).await? else { return Ok(None) };
            if again.egress.generation == row.egress.generation {
                return Ok(Some(made(&row, &sessions, &self.settings)));
            }
        }
    }

    async fn live(&self, id: &SandboxId) -> Result<Option<Sandbox>, StoreError> {
        let row = self.store.sandbox(id).await?;
        Ok(row.filter(|row| !row.phase.is_final() && row.intent.is_none()))
    }
}

/// Puts rules together.
pub(super) fn made(
    row: &Sandbox,
    sessions: &[sessions::Session],
    settings: &EgressSettings,
) -> Rules {
    let session = |session: &sessions::Session| Session {
        uid: session.uid,
        id: session.id.clone(),
        attended: session.attended,
    };
    Rules {
        sandbox: row.id.clone(),
        generation: u64::try_from(row.egress.generation).unwrap_or(0),
        mode: row.network,
        allow: row.egress.entries.clone(),
        sessions: sessions.iter().map(session).collect(),
        others: Others::Sandbox,
        intercept: Vec::new(),
        upstreams: settings.upstreams.clone(),
        exceptions: settings.exceptions.clone(),
    }
}
