//! Reading the audit log (S41).
//!
//! The lines of one sandbox are for whoever may read that sandbox; all lines of
//! the organisation are for its administrators.

use domain::{caller::Caller, id::SandboxId};
use store::audit::AuditFilter;
// The surfaces show these lines as they are kept.
pub use store::audit::{AuditLine, Outcome};

use crate::{
    Control,
    authority::{Action, Owner, may},
    control::detail,
    error::Error,
    page::{Cursor, Limit, Page, page},
};

/// Which lines to read, newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Only those about this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most so many.
    pub limit: Limit,
    /// Where the last page ended.
    pub after: Option<Cursor>,
}

impl Control {
    /// Reads audit lines, newest first.
    pub async fn list_audit(
        &self,
        caller: &Caller,
        query: AuditQuery,
    ) -> Result<Page<AuditLine>, Error> {
        let action = match query.sandbox {
            Some(_) => Action::AuditReadSandbox,
            None => Action::AuditReadAll,
        };
        let object = query.sandbox.as_ref().map(SandboxId::as_str);
        let judged = async {
            let before = query.after.as_ref().map(Cursor::read::<i64>).transpose()?;
            let permit = match &query.sandbox {
                Some(id) => self.judge_sandbox(caller, action, id).await?.0,
                None => may(caller, action, Owner::Caller)?,
            };
            Ok((permit, before))
        };
        let judged = judged.await;
        let before = self.record(caller, action, object, detail([]), judged).await?;
        let filter = AuditFilter {
            organization: caller.organization.clone(),
            object: object.map(str::to_owned),
            limit: query.limit.get() + 1,
            before,
        };
        let lines = self.store().audit_lines(&filter).await?;
        let Page { items, next } = page(lines, query.limit, |(sequence, _)| Cursor::new(sequence));
        Ok(Page { items: items.into_iter().map(|(_, line)| line).collect(), next })
    }
}
