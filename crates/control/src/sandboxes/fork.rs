//! Copies of a running sandbox: its memory and its files, each with a name,
//! randomness and a time limit of its own.
//!
//! One capture serves all of them. Its snapshot is nobody's to see and goes when
//! the last copy has started. The copies are on record together or not at all,
//! after the capture and before the first start.

use domain::{
    caller::Caller,
    environment::Environment,
    id::{Alias, AuditId, SandboxId},
    phase::Phase,
};
use sandbox::{
    backend::Sealed,
    spec::{Personality, SandboxSpec, Source},
};
use store::{
    audit::{AuditLine, Outcome},
    sandboxes::{Added, Fingerprint, Sandbox, rest::Rest},
};

use tokio::sync::oneshot;

use crate::{
    Control,
    authority::Action,
    control::detail,
    error::Error,
    moves::{Begun, Kind, Move},
    sandboxes::{
        request::{Copies, Metadata, Timeout},
        running,
    },
    snapshots::{Purpose, Snapshot, busy},
};

/// How many copies start at the same time. More would wait for one another.
const TOGETHER: usize = 4;

/// A request for copies.
#[derive(Clone, Debug, Default)]
pub struct NewFork {
    /// How many.
    pub count: Copies,
    /// Their labels; those of the sandbox if absent.
    pub metadata: Option<Metadata>,
    /// How long each may run; as long as the sandbox if absent.
    pub timeout: Option<Timeout>,
    /// Variables that are added for processes started from now on.
    pub environment: Environment,
}

impl Control {
    /// Copies a running sandbox and returns when every copy runs or has failed.
    pub async fn fork_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        fork: NewFork,
    ) -> Result<Vec<Sandbox>, Error> {
        let action = Action::SandboxFork;
        let told = detail([("count", fork.count.get().into())]);
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = judged.and_then(|(permit, row)| Ok((permit, running(row)?)));
        let copied = match judged {
            Ok((permit, row)) => {
                let line = self.allowed(caller, permit, Some(id.as_str()), told.clone());
                self.begin_fork(caller, row, fork, line).await
            }
            Err(error) => Err(error),
        };
        match copied {
            Ok(copies) => self.copies(&copies).await,
            Err(error) => Err(self.refuse(caller, action, Some(id.as_str()), told, error).await),
        }
    }

    async fn begin_fork(
        &self,
        caller: &Caller,
        row: Sandbox,
        fork: NewFork,
        line: AuditLine,
    ) -> Result<Vec<SandboxId>, Error> {
        // Judged again when the copies are recorded; this saves a capture.
        self.has_room(&row, fork.count).await?;
        let begun = match self.moves().begin(&row.id, Kind::Copy) {
            Begun::First(begun, _) => begun,
            Begun::Busy(kind) => return Err(busy(kind)),
            Begun::Joined(_) => return Err(busy(Kind::Copy)),
        };
        let copies: Vec<SandboxId> =
            (0..fork.count.get()).map(|_| SandboxId::from_random(self.random())).collect();
        let (control, ids, owner) = (self.clone(), copies.clone(), caller.clone());
        let (done, told) = oneshot::channel();
        self.tasks().spawn(async move {
            let outcome = control.fork(&owner, &row, &ids, fork, line, begun).await;
            // Whoever asked may be gone.
            drop(done.send(outcome));
        });
        told.await.unwrap_or(Err(Error::Unavailable {
            detail: "the server is shutting down; look at the list of sandboxes",
            source: None,
        }))?;
        Ok(copies)
    }

    /// Copies. Owned by the tracker, not by a request.
    async fn fork(
        &self,
        caller: &Caller,
        row: &Sandbox,
        ids: &[SandboxId],
        fork: NewFork,
        line: AuditLine,
        begun: Move,
    ) -> Result<(), Error> {
        let image = self.image_of(&row.template, row.image).await?;
        let (snapshot, sealed) = self.planned(row, &caller.user, Purpose::Fork);
        self.make(&snapshot, sealed.clone(), &line).await?;
        // The sandbox itself is done with, however long its copies take.
        begun.end(Ok(()));
        let copies: Vec<(Sandbox, Fingerprint)> =
            ids.iter().map(|id| self.copy(caller, row, id, &snapshot, &fork)).collect();
        let started = self.start_copies(&line, image, copies, &sealed, &fork.environment).await;
        self.discard(&snapshot, "snapshot.removed").await;
        started
    }

    async fn start_copies(
        &self,
        line: &AuditLine,
        image: domain::image::Image,
        copies: Vec<(Sandbox, Fingerprint)>,
        sealed: &Sealed,
        environment: &Environment,
    ) -> Result<(), Error> {
        let most = self.settings().tier.max_concurrent;
        let mut line = AuditLine {
            id: AuditId::from_random(self.random()),
            time: self.now(),
            action: "sandbox.copied".to_owned(),
            outcome: Outcome::Observed,
            ..line.clone()
        };
        let ids = copies.iter().map(|(copy, _)| copy.id.as_str().into()).collect();
        line.detail.insert("copies".to_owned(), serde_json::Value::Array(ids));
        let starts: Vec<_> =
            copies.iter().map(|(copy, _)| self.starts().begin(copy.id.clone())).collect();
        let count = u32::try_from(copies.len()).unwrap_or(u32::MAX);
        let place = match copies.first() {
            Some((one, _)) => Some(self.place(&one.organization, &one.resources, count).await?),
            None => None,
        };
        let added = self.store().add_copies(&copies, most, &line).await?;
        drop(place);
        match added {
            Added::Full { in_use } => return Err(Error::no_more_sandboxes(most, in_use)),
            Added::New | Added::Repeated(_) | Added::KeyReused => {}
        }
        let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(TOGETHER));
        let mut running = tokio::task::JoinSet::new();
        for ((copy, _), start) in copies.into_iter().zip(starts) {
            let spec = SandboxSpec {
                image: image.clone(),
                resources: copy.resources,
                source: Source::Snapshot(sealed.clone()),
                disks: Vec::new(),
            };
            let personality = Personality {
                environment: environment.clone(),
                network: copy.network,
                ..Personality::default()
            };
            let (control, turns) = (self.clone(), turns.clone());
            running.spawn(async move {
                let _turn = turns.acquire().await;
                control.start(&copy, spec, personality).await;
                drop(start);
            });
        }
        running.join_all().await;
        Ok(())
    }

    fn copy(
        &self,
        caller: &Caller,
        of: &Sandbox,
        id: &SandboxId,
        snapshot: &Snapshot,
        fork: &NewFork,
    ) -> (Sandbox, Fingerprint) {
        let metadata = fork.metadata.as_ref().map_or(&of.metadata, Metadata::get).clone();
        let rest = Rest { paused: None, remaining: None, waking: false, ..of.rest.clone() };
        let copy = Sandbox {
            id: id.clone(),
            alias: Alias::from_random(self.random()),
            owner: caller.user.clone(),
            phase: Phase::Provisioning,
            // The widest mode is asked for each time.
            network: of.network.inherited(),
            intent: None,
            ending: None,
            metadata,
            timeout: fork.timeout.map_or(of.timeout, Timeout::get),
            created: self.now(),
            started: None,
            ended: None,
            expires: None,
            rest,
            parent: Some(snapshot.id.clone()),
            generation: 0,
            ..of.clone()
        };
        (copy, Fingerprint { key: None, request: format!("copy of {}", of.id) })
    }

    async fn has_room(&self, row: &Sandbox, count: Copies) -> Result<(), Error> {
        let most = self.settings().tier.max_concurrent;
        let in_use = self.store().count_live_sandboxes(&row.organization).await?;
        if most.saturating_sub(in_use) < count.get() {
            return Err(Error::no_more_sandboxes(most, in_use));
        }
        // Found out before anything is captured; it is looked for again then.
        drop(self.place(&row.organization, &row.resources, count.get()).await?);
        Ok(())
    }

    async fn copies(&self, ids: &[SandboxId]) -> Result<Vec<Sandbox>, Error> {
        let mut copies = Vec::new();
        for id in ids {
            copies.extend(self.store().sandbox(id).await?);
        }
        // Of those that did not start the first says why, where none did.
        match copies.iter().all(|copy| copy.started.is_none()) {
            true => match copies.into_iter().next() {
                Some(Sandbox { id, ending: Some(ending), .. }) => {
                    Err(Error::StartFailed { id, ending })
                }
                _ => Err(Error::Unavailable {
                    detail: "the server is shutting down; no copy was started",
                    source: None,
                }),
            },
            false => Ok(copies),
        }
    }
}
