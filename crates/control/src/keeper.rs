//! What happens to sandboxes and snapshots without anybody asking: pauses at a
//! time limit and after idleness, the end of what was kept for long enough, and
//! the removal of files whose snapshot is gone.
//!
//! It goes by what is on record and by the wall clock, so a server that was away
//! makes up for it. What does not succeed is tried again, after a while.

use std::time::Duration;

use domain::{
    ending::{Cause, Ending},
    snapshot::OnTimeout,
};
use store::{
    audit::{AuditLine, Outcome},
    sandboxes::{Moved, Sandbox},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Control,
    control::{Detail, detail, random},
    error::Error,
    snapshots::Snapshot,
};

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// Before a pause that failed is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// Why a sandbox is paused by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    TimeLimit,
    Idle,
}

impl Control {
    /// Tends until `stop`.
    pub async fn keep(self, stop: CancellationToken) {
        tokio::join!(self.keep_pool(&stop), self.keep_tending(&stop));
    }

    async fn keep_tending(&self, stop: &CancellationToken) {
        loop {
            if let Err(error) = self.tend().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "sandboxes that rest were not looked after");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(ROUND) => {}
            }
        }
    }

    /// One round. Pauses that it begins go on after it returns.
    pub async fn tend(&self) -> Result<(), Error> {
        let now = self.now();
        for row in self.store().resting_sandboxes().await? {
            if let Some(why) = self.due(&row)
                && !self.moves().has(&row.id)
                && self.moves().may_retry(&row.id, now)
            {
                self.pause_by_itself(row, why);
            }
        }
        for row in self.store().overdue_sandboxes(now).await? {
            let detail = "it was paused for longer than that is kept";
            self.record_ending(&row.id, &Ending::new(Cause::Expired, detail)).await?;
        }
        for snapshot in self.store().expired_snapshots(now).await? {
            let line = self.observed(&snapshot, "snapshot.expired", Detail::new());
            match self.store().mark_snapshot_going(&snapshot.id, &line).await? {
                Moved::Yes | Moved::No => {}
            }
        }
        for Snapshot { id, .. } in self.store().going_snapshots().await? {
            self.sweep(&id).await;
        }
        Ok(())
    }

    fn due(&self, row: &Sandbox) -> Option<Why> {
        let over = row.expires.is_some_and(|expires| self.now().until(expires).is_zero());
        if over && row.rest.on_timeout == OnTimeout::Pause {
            return Some(Why::TimeLimit);
        }
        let idle = self.host().idle(&row.id)?;
        (idle >= row.rest.idle?).then_some(Why::Idle)
    }

    fn pause_by_itself(&self, row: Sandbox, why: Why) {
        let word = match why {
            Why::TimeLimit => "time_limit",
            Why::Idle => "idle",
        };
        let line = AuditLine {
            id: domain::id::AuditId::from_random(random(self.sources())),
            time: self.now(),
            organization: row.organization.clone(),
            user: None,
            token: None,
            action: "sandbox.pause".to_owned(),
            object: Some(row.id.to_string()),
            outcome: Outcome::Observed,
            detail: detail([("why", word.into())]),
        };
        let control = self.clone();
        self.tasks().spawn(async move {
            let id = row.id.clone();
            if control.begin_pause(row, line).await.is_err() {
                // It is logged where it failed, and runs on.
                control.moves().put_off(&id, control.now().plus(AGAIN));
            }
        });
    }
}
