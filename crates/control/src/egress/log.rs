//! Reading the gateway's log, in pages and as it grows.

use std::{collections::VecDeque, time::Duration};

use domain::{caller::Caller, id::SandboxId};
// The surfaces show these lines as they are kept.
pub use store::egress::EgressLine;
use store::{Store, egress::EgressFilter};

use crate::{
    Control,
    authority::{Action, Owner, Permit, may},
    control::detail,
    error::Error,
    page::{Cursor, Limit, Page, page},
};

/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Lines that are read at once.
const CHUNK: u32 = 200;

/// Which lines to read.
#[derive(Clone, Debug, Default)]
pub struct EgressQuery {
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most so many; for one that is followed, so many of before.
    pub limit: Limit,
    /// Where the last page ended.
    pub after: Option<Cursor>,
}

/// A log that is followed. What it shows was decided when it was opened.
#[derive(Debug)]
pub struct Follow {
    store: Store,
    filter: EgressFilter,
    last: i64,
    waiting: VecDeque<EgressLine>,
}

impl Control {
    /// Reads lines, newest first.
    pub async fn list_egress(
        &self,
        caller: &Caller,
        query: EgressQuery,
    ) -> Result<Page<EgressLine>, Error> {
        let judged = async {
            let before = query.after.as_ref().map(Cursor::read::<i64>).transpose()?;
            Ok((self.judge_log(caller, query.sandbox.as_ref()).await?, before))
        };
        let judged = judged.await;
        let object = query.sandbox.as_ref().map(SandboxId::as_str);
        let before = self.record(caller, Action::EgressRead, object, detail([]), judged).await?;
        let filter = filter(caller, query.sandbox.clone(), query.limit.get() + 1);
        let lines = self.store().egress_lines(&filter, before).await?;
        let Page { items, next } = page(lines, query.limit, |(sequence, _)| Cursor::new(sequence));
        Ok(Page { items: items.into_iter().map(|(_, line)| line).collect(), next })
    }

    /// Follows the log from now on, beginning with its last lines.
    pub async fn follow_egress(
        &self,
        caller: &Caller,
        query: EgressQuery,
    ) -> Result<Follow, Error> {
        let judged = self.judge_log(caller, query.sandbox.as_ref()).await;
        let judged = judged.map(|permit| (permit, ()));
        let object = query.sandbox.as_ref().map(SandboxId::as_str);
        let told = detail([("follow", true.into())]);
        self.record(caller, Action::EgressRead, object, told, judged).await?;
        let mut filter = filter(caller, query.sandbox, query.limit.get());
        // Read first: a line that is written in between is among those below.
        let newest = self.store().last_egress().await?;
        let mut lines = self.store().egress_lines(&filter, None).await?;
        let last = lines.first().map_or(newest, |(sequence, _)| *sequence);
        lines.reverse();
        filter.limit = CHUNK;
        let waiting = lines.into_iter().map(|(_, line)| line).collect();
        Ok(Follow { store: self.store().clone(), filter, last, waiting })
    }

    async fn judge_log(&self, caller: &Caller, id: Option<&SandboxId>) -> Result<Permit, Error> {
        match id {
            Some(id) => Ok(self.judge_sandbox(caller, Action::EgressRead, id).await?.0),
            None => Ok(may(caller, Action::EgressRead, Owner::Caller)?),
        }
    }
}

impl Follow {
    /// The next line, when there is one. Losing the future loses no line.
    pub async fn next(&mut self) -> Result<EgressLine, Error> {
        loop {
            if let Some(line) = self.waiting.pop_front() {
                return Ok(line);
            }
            let lines = self.store.egress_lines_after(&self.filter, self.last).await?;
            if let Some((sequence, _)) = lines.last() {
                self.last = *sequence;
                self.waiting.extend(lines.into_iter().map(|(_, line)| line));
                continue;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn filter(caller: &Caller, sandbox: Option<SandboxId>, limit: u32) -> EgressFilter {
    EgressFilter { organization: caller.organization.clone(), sandbox, limit }
}
