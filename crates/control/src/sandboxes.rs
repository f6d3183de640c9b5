//! Sandboxes: seeing them. Making one is in [`create`], ending and changing one
//! in [`change`], and what a request may say in [`request`].

use domain::{caller::Caller, id::SandboxId, phase::Phase, time::Timestamp};
use store::sandboxes::SandboxFilter;
// The surfaces show sandboxes as they are kept: the row has nothing to hide.
pub use store::sandboxes::Sandbox;

use crate::{
    Control,
    authority::{Action, Owner, may},
    control::{Detail, detail},
    error::Error,
    page::{Cursor, Limit, Page, page},
};

pub mod fork;
pub mod request;

mod change;
mod create;
mod pause;

pub(crate) use change::{from_host, running};
pub(crate) use create::{deadline, requested};
pub(crate) use pause::{expired, paused};
pub use request::NewSandbox;

/// Which sandboxes to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct ListSandboxes {
    /// Only those in this phase.
    pub phase: Option<Phase>,
    /// At most so many.
    pub limit: Limit,
    /// Where the last page ended.
    pub after: Option<Cursor>,
}

impl Control {
    /// Shows a sandbox.
    pub async fn get_sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, Error> {
        let action = Action::SandboxGet;
        let judged = self.judge_sandbox(caller, action, id).await;
        self.record(caller, action, Some(id.as_str()), Detail::new(), judged).await
    }

    /// Lists the sandboxes of the organisation, those that ended included.
    pub async fn list_sandboxes(
        &self,
        caller: &Caller,
        query: ListSandboxes,
    ) -> Result<Page<Sandbox>, Error> {
        let action = Action::SandboxList;
        let judged = may(caller, action, Owner::Caller).map_err(Error::from).and_then(|permit| {
            let after = query.after.as_ref().map(Cursor::read_pair::<i64, SandboxId>);
            Ok((permit, after.transpose()?))
        });
        let after = self.record(caller, action, None, detail([]), judged).await?;
        let filter = SandboxFilter {
            organization: caller.organization.clone(),
            phase: query.phase,
            limit: query.limit.get() + 1,
            after: after.map(|(created, id)| (Timestamp(created), id)),
        };
        let sandboxes = self.store().sandboxes(&filter).await?;
        Ok(page(sandboxes, query.limit, |last| {
            Cursor::new(format_args!("{}.{}", last.created.0, last.id))
        }))
    }
}
