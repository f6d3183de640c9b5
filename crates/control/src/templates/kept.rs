//! Snapshots of builds: removed when nothing refers to them, and what a restart
//! finds of builds.

use domain::{
    ending::Cause,
    id::{AuditId, OrganizationId, SnapshotId},
};
use store::{
    audit::{AuditLine, Outcome},
    sandboxes::Moved,
    snapshots::{Purpose, SnapshotState},
};

use crate::{
    Control,
    control::{Detail, detail},
    error::Error,
};

/// The word in the audit log for what goes because nothing refers to it.
const DISCARDED: &str = "template.discarded";

impl Control {
    /// Removes a snapshot that nothing refers to. What fails is done at the next
    /// start.
    pub(super) async fn discard_snapshot(&self, id: &SnapshotId) {
        match self.store().snapshot(id).await {
            Ok(Some(snapshot)) => self.discard(&snapshot, DISCARDED).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(snapshot.id = %id, %error, "a snapshot is removed later"),
        }
    }

    /// Puts in order what builds of an earlier process left: machines that
    /// nothing is built in, snapshots that nothing refers to. What is not whole
    /// is found by whoever looks after snapshots.
    pub(crate) async fn recover_templates(&self) -> Result<(), Error> {
        let referred = self.store().template_snapshots().await?;
        for snapshot in self.store().all_snapshots().await? {
            if snapshot.purpose == Purpose::Template
                && snapshot.state == SnapshotState::Ready
                && !referred.contains(&snapshot.id)
            {
                self.discard(&snapshot, DISCARDED).await;
            }
        }
        for id in self.store().template_builds().await? {
            // Found by what follows as one that is to end.
            if let Some(row) = self.store().sandbox(&id).await? {
                let line = self.remark(&row.organization, row.id.as_str());
                match self.store().mark_ending(&id, Cause::Requested, &line).await? {
                    // It ended before this process did.
                    Moved::Yes | Moved::No => {}
                }
            }
            self.store().remove_template_build(&id).await?;
        }
        Ok(())
    }

    /// A line about what is removed without anybody asking.
    fn remark(&self, organization: &OrganizationId, object: &str) -> AuditLine {
        AuditLine {
            id: AuditId::from_random(self.random()),
            time: self.now(),
            organization: organization.clone(),
            user: None,
            token: None,
            action: DISCARDED.to_owned(),
            object: Some(object.to_owned()),
            outcome: Outcome::Observed,
            detail: Detail::new(),
        }
    }
}

/// What the audit log says at the end of a build.
pub(super) fn built(cached: usize, steps: usize) -> Detail {
    detail([("built", true.into()), ("steps", steps.into()), ("from_before", cached.into())])
}
