//! Sessions: pieces of work in a sandbox, each with an account of its own inside.
//!
//! What leaves the sandbox is attributed to the session whose account asked. An
//! account without one works for the sandbox as a whole.

use domain::{
    caller::Caller,
    id::{SandboxId, SessionId},
};
// The surfaces show sessions as they are kept.
pub use store::sessions::Session;
use store::{sandboxes::Moved, sessions::SessionAdded};

use crate::{
    Control,
    authority::Action,
    control::detail,
    error::{ConflictCode, Error},
};

/// The most sessions of one sandbox at a time.
const MOST: u32 = 64;
/// The accounts that may have a session: no system account among them.
const ACCOUNTS: std::ops::RangeInclusive<u32> = 1000..=65_533;

/// A request for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// Its account inside.
    pub uid: u32,
    /// Whether somebody is there to be asked.
    pub attended: bool,
}

impl Control {
    /// Makes a session in a live sandbox.
    pub async fn create_session(
        &self,
        caller: &Caller,
        sandbox: &SandboxId,
        new: NewSession,
    ) -> Result<Session, Error> {
        let action = Action::SessionCreate;
        let id = SessionId::from_random(self.random());
        let object = Some(sandbox.as_str());
        let told = || {
            detail([
                ("session", id.as_str().into()),
                ("uid", new.uid.into()),
                ("attended", new.attended.into()),
            ])
        };
        let judged = async {
            let (permit, row) = self.judge_sandbox(caller, action, sandbox).await?;
            if !ACCOUNTS.contains(&new.uid) {
                return Err(Error::invalid("uid", "must be 1000 to 65533"));
            }
            Ok((permit, row))
        };
        let (permit, row) = match judged.await {
            Ok(judged) => judged,
            Err(error) => return Err(self.refuse(caller, action, object, told(), error).await),
        };
        let session = Session {
            id: id.clone(),
            sandbox: sandbox.clone(),
            organization: row.organization,
            owner: caller.user.clone(),
            region: row.region,
            uid: new.uid,
            attended: new.attended,
            created: self.now(),
            ended: None,
        };
        let line = self.allowed(caller, permit, object, told());
        let error = match self.store().add_session(&session, MOST, &line).await? {
            SessionAdded::Yes => {
                self.publish(sandbox).await?;
                return Ok(session);
            }
            SessionAdded::Taken => Error::Conflict {
                code: ConflictCode::SessionExists,
                detail: format!("account {} has a session already; end it first", new.uid),
            },
            SessionAdded::Full => Error::Conflict {
                code: ConflictCode::TooManySessions,
                detail: format!("the sandbox has {MOST} sessions; end one first"),
            },
            SessionAdded::Gone => Error::not_running("the sandbox has ended"),
        };
        Err(self.refuse(caller, action, object, told(), error).await)
    }

    /// Lists the sessions of a sandbox that have not ended.
    pub async fn list_sessions(
        &self,
        caller: &Caller,
        sandbox: &SandboxId,
    ) -> Result<Vec<Session>, Error> {
        let action = Action::SessionList;
        let judged = self.judge_sandbox(caller, action, sandbox).await;
        let judged = judged.map(|(permit, _)| (permit, ()));
        self.record(caller, action, Some(sandbox.as_str()), detail([]), judged).await?;
        Ok(self.store().sessions(sandbox).await?)
    }

    /// Ends a session. Its account works for the sandbox as a whole from then on.
    pub async fn end_session(
        &self,
        caller: &Caller,
        sandbox: &SandboxId,
        id: &SessionId,
    ) -> Result<(), Error> {
        let action = Action::SessionEnd;
        let object = Some(sandbox.as_str());
        let told = || detail([("session", id.as_str().into())]);
        let permit = match self.judge_sandbox(caller, action, sandbox).await {
            Ok((permit, _)) => permit,
            Err(error) => return Err(self.refuse(caller, action, object, told(), error).await),
        };
        let line = self.allowed(caller, permit, object, told());
        match self.store().end_session(sandbox, id, self.now(), &line).await? {
            Moved::Yes => self.publish(sandbox).await,
            Moved::No => {
                let error = Error::NotFound { noun: "session" };
                Err(self.refuse(caller, action, object, told(), error).await)
            }
        }
    }
}
