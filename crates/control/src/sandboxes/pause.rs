//! Pausing a sandbox and resuming it.
//!
//! ```text
//!  pause:   row of the snapshot ──► host captures ──► ledger: paused ──► machine gone
//!  resume:  place taken ──► host starts ──► ledger: running, key gone ──► files gone
//! ```
//!
//! What must hold: each is a task of ours, so a client that hangs up leaves a
//! sandbox that is running or paused and nothing in between. Of simultaneous
//! wishes one is done and the others wait for it. A pause that fails leaves a
//! running sandbox, a resume that fails a paused one.

use std::time::Duration;

use domain::{caller::Caller, ending::Cause, id::SandboxId, phase::Phase};
use sandbox::{
    host::HostError,
    spec::{SandboxSpec, Source},
};
use store::{
    audit::{AuditLine, Outcome},
    sandboxes::{Moved, Sandbox, rest::Woken},
};

use super::create::START_ALLOWANCE;
use crate::{
    Control,
    authority::Action,
    control::{Detail, detail},
    error::{ConflictCode, Error},
    moves::{Begun, Kind, Waiting},
    sandboxes::{request::Timeout, running},
    snapshots::{Purpose, busy, from_capture},
};

impl Control {
    /// Pauses a sandbox and returns when its machine is gone. Pausing one that is
    /// paused succeeds.
    pub async fn pause_sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, Error> {
        let action = Action::SandboxPause;
        let object = Some(id.as_str());
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = judged.and_then(|(permit, row)| {
            let row = if row.phase == Phase::Paused { row } else { running(row)? };
            Ok((permit, row))
        });
        let paused = match judged {
            Ok((permit, row)) => {
                let line = self.allowed(caller, permit, object, Detail::new());
                self.begin_pause(row, line).await
            }
            Err(error) => Err(error),
        };
        self.answered(caller, action, id, Detail::new(), paused).await
    }

    /// Resumes a paused sandbox and returns when it runs. Resuming one that runs
    /// succeeds. With `timeout` it gets that much time, else what was left.
    pub async fn resume_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        timeout: Option<Timeout>,
    ) -> Result<Sandbox, Error> {
        let action = Action::SandboxResume;
        let told = match timeout {
            Some(timeout) => detail([("timeout_seconds", timeout.get().as_secs().into())]),
            None => Detail::new(),
        };
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = judged.and_then(|(permit, row)| Ok((permit, resumable(row)?)));
        let resumed = match judged {
            Ok((permit, row)) => {
                let line = self.allowed(caller, permit, Some(id.as_str()), told.clone());
                self.begin_resume(row, timeout.map(Timeout::get), line).await
            }
            Err(error) => Err(error),
        };
        self.answered(caller, action, id, told, resumed).await
    }

    /// Resumes a sandbox because somebody uses it, if its owner wants that.
    pub(crate) async fn wake(&self, caller: &Caller, row: Sandbox) -> Result<(), Error> {
        let id = row.id.clone();
        self.moves().settled(&id).await;
        let row = self.store().sandbox(&id).await?.ok_or(Error::NotFound { noun: "sandbox" })?;
        let row = resumable(row)?;
        if row.phase == Phase::Running {
            return Ok(());
        }
        if !row.rest.auto_resume {
            return Err(paused());
        }
        let told = detail([("auto", true.into())]);
        let line = AuditLine {
            outcome: Outcome::Observed,
            ..self.line(caller, Action::SandboxResume, Some(id.as_str()), told)
        };
        self.begin_resume(row, None, line).await
    }

    /// Begins a pause, or joins one, and waits.
    pub(crate) async fn begin_pause(&self, row: Sandbox, line: AuditLine) -> Result<(), Error> {
        if row.phase == Phase::Paused && !self.moves().has(&row.id) {
            return Ok(self.store().append_audit(&line).await?);
        }
        match self.moves().begin(&row.id, Kind::Pause) {
            Begun::First(begun, waiting) => {
                let control = self.clone();
                self.tasks().spawn(async move {
                    let outcome = control.pause(&row, &line).await;
                    report(&row.id, "a sandbox was not paused", &outcome);
                    begun.end(outcome);
                });
                waiting.outcome().await
            }
            Begun::Joined(waiting) => self.joined(waiting, line).await,
            Begun::Busy(kind) => Err(busy(kind)),
        }
    }

    async fn begin_resume(
        &self,
        row: Sandbox,
        remaining: Option<Duration>,
        line: AuditLine,
    ) -> Result<(), Error> {
        if row.phase == Phase::Running && !self.moves().has(&row.id) {
            return Ok(self.store().append_audit(&line).await?);
        }
        match self.moves().begin(&row.id, Kind::Resume) {
            Begun::First(begun, waiting) => {
                let control = self.clone();
                self.tasks().spawn(async move {
                    let outcome = control.resume(&row, remaining, &line).await;
                    report(&row.id, "a sandbox was not resumed", &outcome);
                    begun.end(outcome);
                });
                waiting.outcome().await
            }
            Begun::Joined(waiting) => self.joined(waiting, line).await,
            Begun::Busy(kind) => Err(busy(kind)),
        }
    }

    async fn joined(&self, waiting: Waiting, mut line: AuditLine) -> Result<(), Error> {
        line.detail.insert("joined".to_owned(), true.into());
        self.store().append_audit(&line).await?;
        waiting.outcome().await
    }

    /// Pauses. Owned by the tracker, not by a request.
    async fn pause(&self, row: &Sandbox, line: &AuditLine) -> Result<(), Error> {
        self.refuse_with_moving_volumes(&row.id).await?;
        self.flush_volumes(&row.id).await?;
        let (snapshot, sealed) = self.planned(row, &row.owner, Purpose::Pause);
        let paused = match self.add_planned(&snapshot, &sealed, line).await {
            Ok(()) => match self.host().pause(&row.id, sealed).await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    self.abandon(&snapshot).await;
                    Err(from_capture(error))
                }
            },
            Err(error) => Err(error),
        };
        // What is on record decides: another process may have come first.
        let row = self.store().sandbox(&row.id).await?;
        if row.is_some_and(|row| row.phase == Phase::Paused) { Ok(()) } else { paused }
    }

    /// Resumes. Owned by the tracker, not by a request.
    async fn resume(
        &self,
        row: &Sandbox,
        remaining: Option<Duration>,
        line: &AuditLine,
    ) -> Result<(), Error> {
        let id = &row.id;
        let Some(snapshot) = self.store().pause_of(id).await? else {
            let row = self.store().sandbox(id).await?;
            let row = resumable(row.ok_or(Error::NotFound { noun: "sandbox" })?)?;
            return match row.phase {
                Phase::Running => Ok(self.store().append_audit(line).await?),
                _ => Err(Error::conflict(
                    ConflictCode::SnapshotMissing,
                    "the sandbox has no snapshot to go on from",
                )),
            };
        };
        let image = self.image_of(&row.template, row.image).await?;
        let sealed = match self.opened(&snapshot).await {
            Ok(sealed) => sealed,
            Err(error) => {
                // A sandbox that ended meanwhile took its snapshot along.
                let row = self.store().sandbox(id).await?;
                resumable(row.ok_or(Error::NotFound { noun: "sandbox" })?)?;
                return Err(error);
            }
        };
        let disks = self.disks_of(id).await?;
        let most = self.settings().tier.max_concurrent;
        let place = self.place(&row.organization, &row.resources, 1).await?;
        let woken = self.store().begin_waking(row, remaining, most, line).await?;
        drop(place);
        match woken {
            Woken::Begun => {}
            Woken::No => return Err(Error::not_running("the sandbox is not paused any more")),
            Woken::Full { in_use } => return Err(Error::no_more_sandboxes(most, in_use)),
        }
        let spec = SandboxSpec {
            image,
            resources: row.resources,
            source: Source::Snapshot(sealed),
            disks,
        };
        let latest = self.now().plus(START_ALLOWANCE).plus(row.timeout);
        match self.host().resume(id.clone(), spec, Some(latest)).await {
            Ok(()) => {
                self.sweep(&snapshot.id).await;
                self.tell_again(id);
                self.pass_on_deadline(id).await
            }
            Err(error) => {
                let why = match error {
                    HostError::NotResumed(why) => why,
                    error => error.to_string(),
                };
                let told = detail([("why", crate::control::clipped(&why))]);
                let mut line = self.observed(&snapshot, "sandbox.resume_failed", told);
                line.object = Some(id.to_string());
                match self.store().end_waking(id, &line).await? {
                    Moved::Yes => Err(Error::ResumeFailed { detail: why }),
                    Moved::No => Err(Error::not_running("the sandbox ended in the meantime")),
                }
            }
        }
    }

    /// The sandbox after what was asked, or the refusal on record.
    async fn answered(
        &self,
        caller: &Caller,
        action: Action,
        id: &SandboxId,
        told: Detail,
        outcome: Result<(), Error>,
    ) -> Result<Sandbox, Error> {
        match outcome {
            Ok(()) => {
                let row = self.store().sandbox(id).await?;
                row.ok_or(Error::NotFound { noun: "sandbox" })
            }
            Err(error) => Err(self.refuse(caller, action, Some(id.as_str()), told, error).await),
        }
    }
}

/// The sandbox, if it can be brought to run or runs.
pub(crate) fn resumable(row: Sandbox) -> Result<Sandbox, Error> {
    match (row.phase, row.intent, row.ending.as_ref().map(|ending| ending.cause)) {
        (Phase::Paused, None, _) => Ok(row),
        (Phase::Paused, Some(_), _) => Err(Error::not_running("the sandbox is being removed")),
        (_, _, Some(Cause::Expired)) => Err(expired()),
        _ => running(row),
    }
}

/// What a paused sandbox answers to whoever uses it.
pub(crate) fn paused() -> Error {
    let why = "the sandbox is paused; resume it first, or let it resume by itself with auto_resume";
    Error::conflict(ConflictCode::SandboxPaused, why)
}

pub(crate) fn expired() -> Error {
    let why = "the sandbox was paused for longer than that is kept, and its snapshot is gone";
    Error::Gone { detail: why.to_owned() }
}

fn report(id: &SandboxId, what: &str, outcome: &Result<(), Error>) {
    if let Err(error) = outcome {
        let error = error as &dyn std::error::Error;
        tracing::warn!(sandbox.id = %id, error, "{what}");
    }
}
