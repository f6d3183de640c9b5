//! One lookup for one decision.
//!
//! A permitted name is looked up once, every answer is judged, and what comes
//! out is a list of addresses. Nobody looks the name up again: a second answer
//! could be another one (D-01).

pub mod dns;

use std::{
    net::IpAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use domain::host::Name;
use hickory_resolver::proto::rr::{Record, RecordType};

use crate::{
    address::Own,
    code::{Code, Refusal},
    decide::{Permit, Pinned, pin},
};

/// How long a reading of this host's own addresses is used.
const OWN_AGE: Duration = Duration::from_secs(5);

/// Why a name could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is no such name, or it has no address.
    #[error("the name has no address")]
    NoSuchName,
    /// Nobody answered in time, or the answer made no sense.
    #[error("the name could not be looked up")]
    Failed {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Who looks names up.
#[async_trait]
pub trait Lookup: Send + Sync {
    /// Every address of a name, both families. Bounded in time and in number.
    async fn addresses(&self, name: &Name) -> Result<Vec<IpAddr>, LookupError>;

    /// The records of one type, for a question that is passed on.
    async fn records(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, LookupError>;
}

/// Turns permits into addresses.
pub struct Resolver {
    lookup: Box<dyn Lookup>,
    own: Mutex<Option<(Instant, Own)>>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// Who looks names up, for questions that are passed on.
    pub fn lookup(&self) -> &dyn Lookup {
        &*self.lookup
    }

    /// Uses `lookup`.
    pub fn new(lookup: Box<dyn Lookup>) -> Self {
        Self { lookup, own: Mutex::new(None) }
    }

    /// Looks a permitted destination up and judges every answer.
    pub async fn pin(&self, permit: Permit) -> Result<Pinned, Refusal> {
        let host = permit.request().host.clone();
        let answers = match (host.address(), host.name()) {
            (Some(address), _) => vec![address],
            (None, Some(name)) => self.lookup.addresses(name).await.map_err(|error| {
                tracing::debug!(error = &error as &dyn std::error::Error, "a lookup failed");
                let detail = format!("{host}: {error}");
                Refusal::new(Code::Unresolvable, "resolution", detail)
            })?,
            (None, None) => Vec::new(),
        };
        pin(permit, &answers, &self.own()?)
    }

    /// This host's own addresses, as they were a moment ago at the earliest.
    pub fn own(&self) -> Result<Own, Refusal> {
        // Nothing panics while it is held.
        let mut kept = self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((read, own)) = &*kept
            && read.elapsed() < OWN_AGE
        {
            return Ok(own.clone());
        }
        let own = Own::of_this_host().map_err(|error| {
            tracing::error!(%error, "this host's own addresses cannot be read");
            Refusal::new(Code::InternalError, "address", "the gateway cannot judge addresses")
        })?;
        *kept = Some((Instant::now(), own.clone()));
        Ok(own)
    }
}

#[cfg(test)]
mod tests;
