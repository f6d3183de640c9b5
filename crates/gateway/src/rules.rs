//! What one sandbox may do, at one generation.
//!
//! Made by the server from what it keeps, sent whole, replaced whole. Nothing of
//! it comes from the sandbox. Rules that are absent are not permissive rules:
//! there is no `Default`.

mod opened;

use std::sync::Arc;

use async_trait::async_trait;
use domain::{
    allow::{Entry, Scheme},
    host::Host,
    id::{SandboxId, SessionId},
    mode::EgressMode,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use self::opened::InvalidOpening;

/// The rules of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Whose.
    pub sandbox: SandboxId,
    /// Grows with every change; the rules of a higher one replace these.
    pub generation: u64,
    /// How much can be reached.
    pub mode: EgressMode,
    /// In `restricted`, the destinations; presets are resolved into it. Nothing
    /// in it permits nothing.
    pub allow: Vec<Entry>,
    /// Sessions and the account of each.
    pub sessions: Vec<Session>,
    /// What an account without a session is.
    pub others: Others,
    /// Hosts whose TLS is opened.
    pub intercept: Vec<Host>,
    /// What named paths lead to.
    pub upstreams: Vec<Upstream>,
    /// Internal destinations that the operator opened, exactly.
    pub exceptions: Vec<Exception>,
}

/// A piece of work with an account of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its account inside.
    pub uid: u32,
    /// Names it.
    pub id: SessionId,
    /// Whether somebody is there to be asked.
    pub attended: bool,
}

/// What an account is that no session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Others {
    /// It works for the sandbox as a whole.
    Sandbox,
    /// It is nobody and gets nothing.
    Nobody,
}

/// A named destination of the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// The first segment of the path.
    pub name: String,
    /// What is spoken to it.
    pub scheme: Scheme,
    /// Where it is. May be internal: the operator named it.
    pub host: Host,
    /// At which port.
    pub port: u16,
    /// What is put in front of the rest of the path; begins with a slash, ends
    /// without one, or is empty.
    pub base: String,
}

/// An internal destination that may be reached all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// Exactly this host, as it is asked for.
    pub host: Host,
    /// Exactly this port.
    pub port: u16,
}

/// Where rules come from.
#[async_trait]
pub trait Policy: Send + Sync {
    /// The rules of a sandbox, and every later version of them.
    ///
    /// Waits until there are some of `generation` or later, as long as the
    /// caller cares to. `None` says that the sandbox is not known; when the
    /// sender of the channel is gone, it is known no longer.
    async fn rules(
        &self,
        sandbox: &SandboxId,
        generation: u64,
    ) -> Option<watch::Receiver<Arc<Rules>>>;
}

impl Rules {
    /// Rules that permit nothing.
    pub fn off(sandbox: SandboxId, generation: u64) -> Self {
        Self {
            sandbox,
            generation,
            mode: EgressMode::Off,
            allow: Vec::new(),
            sessions: Vec::new(),
            others: Others::Sandbox,
            intercept: Vec::new(),
            upstreams: Vec::new(),
            exceptions: Vec::new(),
        }
    }

    /// Whether the operator opened exactly this internal destination.
    pub fn excepts(&self, host: &Host, port: u16) -> bool {
        self.exceptions.iter().any(|exception| exception.host == *host && exception.port == port)
    }
}
