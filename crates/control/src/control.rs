//! What every use case works with, and the step between deciding and acting.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use domain::{
    caller::Caller,
    id::{AuditId, SandboxId},
    time::Timestamp,
};
use sandbox::host::{Host, Sources};
use serde_json::{Map, Value};
use store::{
    Store,
    audit::{AuditLine, Outcome},
    sandboxes::Sandbox,
};
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use crate::{
    admission::Gate,
    authority::{Action, Owner, Permit, may},
    error::Error,
    images::Images,
    metrics::Samples,
    moves::Moves,
    pool::Pool,
    settings::Settings,
    starts::Starts,
    volumes::Volumes,
};

/// The longest text of a caller that an audit line repeats.
const MOST_TEXT: usize = 1024;

/// The use cases. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    images: Arc<dyn Images>,
    host: Host,
    settings: Settings,
    sources: Sources,
    tasks: TaskTracker,
    starts: Starts,
    moves: Moves,
    pool: Pool,
    deadlines: Mutex<()>,
    volumes: OnceLock<Volumes>,
    gate: Gate,
    samples: Samples,
}

/// Metadata of an audit line.
pub(crate) type Detail = Map<String, Value>;

impl Control {
    /// Puts the use cases together.
    ///
    /// # Errors
    /// When the backend separates sandboxes less than the settings demand.
    pub fn new(
        store: Store,
        images: Arc<dyn Images>,
        host: Host,
        settings: Settings,
        sources: Sources,
    ) -> Result<Self, Error> {
        let (given, demanded) = (host.isolation(), settings.least_isolation);
        if !given.satisfies(demanded) {
            return Err(Error::Isolation { given, demanded });
        }
        Ok(Self {
            shared: Arc::new(Shared {
                store,
                images,
                host,
                settings,
                sources,
                tasks: TaskTracker::new(),
                starts: Starts::default(),
                moves: Moves::default(),
                pool: Pool::default(),
                deadlines: Mutex::new(()),
                volumes: OnceLock::new(),
                gate: Gate::default(),
                samples: Samples::default(),
            }),
        })
    }

    /// Gives the installation a place for volumes. The first one stays.
    #[must_use]
    pub fn with_volumes(self, volumes: Volumes) -> Self {
        self.shared.volumes.set(volumes).ok();
        self
    }

    /// Whether requests can be answered.
    pub async fn ready(&self) -> Result<(), Error> {
        Ok(self.shared.store.ready().await?)
    }

    /// Lets go of every sandbox, which lives on for the next process, and waits
    /// for the tasks of this one.
    pub async fn shut_down(&self, patience: Duration) {
        self.shared.tasks.close();
        let ending = async {
            self.shared.host.release().await;
            self.shared.tasks.wait().await;
        };
        if tokio::time::timeout(patience, ending).await.is_err() {
            tracing::warn!("starts were still under way; the next process removes what they made");
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    pub(crate) fn images(&self) -> &dyn Images {
        &*self.shared.images
    }

    pub(crate) fn host(&self) -> &Host {
        &self.shared.host
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn installed_volumes(&self) -> Option<&Volumes> {
        self.shared.volumes.get()
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }

    pub(crate) fn starts(&self) -> &Starts {
        &self.shared.starts
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn moves(&self) -> &Moves {
        &self.shared.moves
    }

    /// Held while a time limit is written and passed on, so that the host learns
    /// of limits in the order in which the store has them.
    pub(crate) fn deadlines(&self) -> &Mutex<()> {
        &self.shared.deadlines
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    pub(crate) fn samples(&self) -> &Samples {
        &self.shared.samples
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.shared.sources.clock)()
    }

    pub(crate) fn random(&self) -> [u8; 16] {
        random(&self.shared.sources)
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.shared.sources
    }

    /// Finds a sandbox and judges what the caller wants of it.
    pub(crate) async fn judge_sandbox(
        &self,
        caller: &Caller,
        action: Action,
        id: &SandboxId,
    ) -> Result<(Permit, Sandbox), Error> {
        let found = self.store().sandbox(id).await?;
        let owner = found.as_ref().map(|sandbox| &sandbox.organization);
        let permit = may(caller, action, Owner::Found(owner))?;
        match found {
            Some(sandbox) => Ok((permit, sandbox)),
            None => Err(Error::NotFound { noun: action.noun() }),
        }
    }

    /// The line of something that was allowed.
    pub(crate) fn allowed(
        &self,
        caller: &Caller,
        permit: Permit,
        object: Option<&str>,
        detail: Detail,
    ) -> AuditLine {
        self.line(caller, permit.action(), object, detail)
    }

    /// Writes the line of something that was decided and changes no row.
    ///
    /// A "no" is returned as it was given. If it is our own fault, there is no
    /// decision to record. If the line cannot be written, that is the answer.
    pub(crate) async fn record<T>(
        &self,
        caller: &Caller,
        action: Action,
        object: Option<&str>,
        detail: Detail,
        judged: Result<(Permit, T), Error>,
    ) -> Result<T, Error> {
        match judged {
            Ok((permit, value)) => {
                let line = self.allowed(caller, permit, object, detail);
                self.store().append_audit(&line).await?;
                Ok(value)
            }
            Err(error) => Err(self.refuse(caller, action, object, detail, error).await),
        }
    }

    /// Writes the line of a refusal and returns what the caller is told.
    pub(crate) async fn refuse(
        &self,
        caller: &Caller,
        action: Action,
        object: Option<&str>,
        mut detail: Detail,
        error: Error,
    ) -> Error {
        if matches!(error, Error::Internal { .. } | Error::Unavailable { .. }) {
            return error;
        }
        detail.insert("code".to_owned(), error.code().into());
        let line =
            AuditLine { outcome: Outcome::Refused, ..self.line(caller, action, object, detail) };
        match self.store().append_audit(&line).await {
            Ok(()) => error,
            Err(unrecorded) => unrecorded.into(),
        }
    }

    /// A line about what a caller asked for; allowed, unless said otherwise.
    pub(crate) fn line(
        &self,
        caller: &Caller,
        action: Action,
        object: Option<&str>,
        detail: Detail,
    ) -> AuditLine {
        AuditLine {
            id: AuditId::from_random(self.random()),
            time: self.now(),
            organization: caller.organization.clone(),
            user: Some(caller.user.clone()),
            token: Some(caller.token.clone()),
            action: action.as_str().to_owned(),
            object: object.map(str::to_owned),
            outcome: Outcome::Allowed,
            detail,
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

/// Sixteen random bytes, for an id.
pub(crate) fn random(sources: &Sources) -> [u8; 16] {
    let mut bytes = [0; 16];
    (sources.random)(&mut bytes);
    bytes
}

/// Metadata from pairs.
pub(crate) fn detail<const N: usize>(pairs: [(&str, Value); N]) -> Detail {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A caller's text, cut to what an audit line repeats.
pub(crate) fn clipped(text: &str) -> Value {
    text.chars().take(MOST_TEXT).collect::<String>().into()
}
