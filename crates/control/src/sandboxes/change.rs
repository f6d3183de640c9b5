//! Ending a sandbox, moving its time limit, reading its console.

use std::time::Duration;

use domain::{caller::Caller, ending::Cause, id::SandboxId, phase::Phase, time::Timestamp};
use sandbox::host::HostError;
use store::sandboxes::{Moved, Sandbox};

use crate::{
    Control,
    authority::Action,
    control::{Detail, detail},
    error::Error,
    sandboxes::{deadline, expired, paused, request::Timeout, requested},
};

/// How long the removal of a machine may take before the caller is told to come
/// back; the driver goes on.
const REMOVAL: Duration = Duration::from_secs(90);
/// How long a driver may take to hear of a time limit.
const HEARING: Duration = Duration::from_secs(10);

impl Control {
    /// Ends a sandbox and returns when nothing of it is left.
    ///
    /// Ending one that has ended succeeds. The wish is recorded first: a server
    /// that stops in the middle finishes it when it comes back.
    pub async fn terminate_sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<(), Error> {
        let action = Action::SandboxTerminate;
        let object = Some(id.as_str());
        let permit = match self.judge_sandbox(caller, action, id).await {
            Ok((permit, row)) if row.phase.is_final() => {
                let judged = Ok((permit, ()));
                return self.record(caller, action, object, Detail::new(), judged).await;
            }
            Ok((permit, _)) => permit,
            Err(error) => {
                return Err(self.refuse(caller, action, object, Detail::new(), error).await);
            }
        };
        let line = self.allowed(caller, permit, object, Detail::new());
        if self.store().mark_ending(id, Cause::Requested, &line).await? == Moved::No {
            // Somebody else's wish, or the end itself, came first.
            self.store().append_audit(&line).await?;
        }
        let ending = self.host().terminate(id, Cause::Requested);
        match tokio::time::timeout(REMOVAL, ending).await {
            Ok(Ok(_)) => self.sweep_gone(id).await,
            // No driver has it: it ended in between, or its start has not begun,
            // and a start that is not provisioning any more removes itself.
            Ok(Err(HostError::NotFound)) => {
                self.record_ending(id, &requested()).await?;
                self.sweep_gone(id).await
            }
            Ok(Err(error)) => Err(Error::Internal { source: Box::new(error) }),
            Err(_) => Err(Error::Unavailable {
                detail: "the sandbox is still being removed; ask again",
                source: None,
            }),
        }
    }

    /// Sets the time limit of a running sandbox to `timeout` from now.
    pub async fn set_timeout(
        &self,
        caller: &Caller,
        id: &SandboxId,
        timeout: Timeout,
    ) -> Result<Sandbox, Error> {
        let action = Action::SandboxSetTimeout;
        let object = Some(id.as_str());
        let told = || detail([("timeout_seconds", timeout.get().as_secs().into())]);
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = judged.and_then(|(permit, row)| Ok((permit, running(row)?)));
        let permit = match judged {
            Ok((permit, _)) => permit,
            Err(error) => return Err(self.refuse(caller, action, object, told(), error).await),
        };
        let line = self.allowed(caller, permit, object, told());
        let _order = self.deadlines().lock().await;
        let expires = self.now().plus(timeout.get());
        if self.store().set_sandbox_expiry(id, expires, &line).await? == Moved::No {
            let error = Error::not_running("the sandbox ended in the meantime");
            return Err(self.refuse(caller, action, object, told(), error).await);
        }
        let row = self.store().sandbox(id).await?.ok_or(Error::NotFound { noun: "sandbox" })?;
        let deadline = deadline(&row).unwrap_or(expires);
        self.tell_deadline(id, deadline).await.map_err(from_host)?;
        Ok(row)
    }

    /// Removes the files of the snapshots that went with a sandbox.
    async fn sweep_gone(&self, id: &SandboxId) -> Result<(), Error> {
        for snapshot in self.store().going_snapshots().await? {
            if snapshot.sandbox == *id {
                self.sweep(&snapshot.id).await;
            }
        }
        Ok(())
    }

    /// Tells the driver a time limit. Needs [`Control::deadlines`].
    pub(super) async fn tell_deadline(
        &self,
        id: &SandboxId,
        expires: Timestamp,
    ) -> Result<(), HostError> {
        let told = self.host().set_deadline(id, expires);
        let silent = |_| HostError::Unreachable(std::io::ErrorKind::TimedOut.into());
        tokio::time::timeout(HEARING, told).await.map_err(silent)?
    }

    /// Reads the last output of the machine's console.
    pub async fn console(&self, caller: &Caller, id: &SandboxId) -> Result<Vec<u8>, Error> {
        let action = Action::SandboxConsole;
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = judged.and_then(|(permit, row)| {
            if row.phase.is_final() {
                return Err(Error::not_running("the sandbox has ended and its console is gone"));
            }
            Ok((permit, ()))
        });
        self.record(caller, action, Some(id.as_str()), Detail::new(), judged).await?;
        self.host().console(id).await.map_err(from_host)
    }
}

/// The sandbox, if something can be done inside it now.
pub(crate) fn running(row: Sandbox) -> Result<Sandbox, Error> {
    match (row.phase, row.intent) {
        (Phase::Running, None) => Ok(row),
        (Phase::Running | Phase::Provisioning, Some(_)) => {
            Err(Error::not_running("the sandbox is being removed"))
        }
        (Phase::Provisioning, None) => Err(Error::not_running("the sandbox is not running yet")),
        (Phase::Paused, None) => Err(paused()),
        (Phase::Sleeping | Phase::Paused, _) => {
            Err(Error::not_running(format!("the sandbox is {}", row.phase)))
        }
        _ if row.ending.as_ref().is_some_and(|ending| ending.cause == Cause::Expired) => {
            Err(expired())
        }
        (Phase::Terminated | Phase::Failed, _) => {
            let how = row.ending.map_or_else(|| row.phase.to_string(), |ending| ending.detail);
            Err(Error::not_running(format!("the sandbox has ended: {how}")))
        }
    }
}

/// What a caller can do about a fault of the host.
pub(crate) fn from_host(error: HostError) -> Error {
    match error {
        HostError::NotFound => Error::not_running("the sandbox has ended"),
        HostError::Paused => paused(),
        HostError::NotRunning
        | HostError::Busy
        | HostError::Ended(_)
        | HostError::NotRecorded(_) => Error::not_running(error.to_string()),
        HostError::Backend(sandbox::backend::BackendError::NotFound) => {
            Error::not_running("the sandbox has ended")
        }
        HostError::Unreachable(_) => Error::Unavailable {
            detail: "the sandbox does not answer now; try again",
            source: Some(Box::new(error)),
        },
        HostError::Backend(_) | HostError::NotResumed(_) => {
            Error::Internal { source: Box::new(error) }
        }
    }
}
