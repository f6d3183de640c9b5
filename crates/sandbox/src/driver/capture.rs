//! Capturing the machine of a driver.
//!
//! The work is polled by the driver's own loop, so that a wish to end the
//! sandbox is heard in the middle of it. Dropped, it leaves a snapshot that is
//! not whole, which whoever asked for it removes, and a machine that may stand
//! still, which [`Driver::proceed`] lets go on.

use std::pin::Pin;

use domain::id::SnapshotId;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Answer, Driver};
use crate::{
    backend::{BackendError, Captured, Sealed, Then},
    driver::machine::describe,
    host::HostError,
    lifecycle::{Action, Event, State, step},
};

type Work = dyn Future<Output = Result<Captured, BackendError>> + Send;

/// A capture that is under way.
pub(super) struct Capturing {
    snapshot: SnapshotId,
    answer: Answer,
    until: Instant,
    work: Pin<Box<Work>>,
}

/// A capture that succeeded, and who waits to hear of it.
pub(super) struct Asked {
    pub(super) snapshot: SnapshotId,
    pub(super) captured: Captured,
    answer: Answer,
}

impl Asked {
    /// Tells that it is done. Whoever asked may be gone.
    pub(super) fn succeed(self) {
        drop(self.answer.send(Ok(self.captured)));
    }

    /// Tells that the record says otherwise.
    pub(super) fn refuse(self, why: &str) {
        drop(self.answer.send(Err(HostError::NotRecorded(why.to_owned()))));
    }
}

/// Waits for the capture that is under way; for ever where there is none.
pub(super) async fn captured(capture: &mut Option<Capturing>) -> Result<Captured, HostError> {
    let Some(capture) = capture else { return std::future::pending().await };
    match timeout_at(capture.until, &mut capture.work).await {
        Ok(outcome) => outcome.map_err(HostError::Backend),
        Err(_) => Err(HostError::Backend(BackendError::failed(
            "capturing the machine",
            "it took too long",
        ))),
    }
}

impl Driver {
    /// Begins a capture, or tells why there can be none now.
    pub(super) fn begin_capture(
        &self,
        to: Sealed,
        then: Then,
        answer: Answer,
    ) -> Option<Capturing> {
        let (state, action) = step(self.state.borrow().clone(), Event::Capture(then));
        if action != Action::Capture(then) {
            drop(answer.send(Err(match state {
                State::Provisioning | State::Resuming => HostError::NotRunning,
                State::Copying | State::Running => HostError::Busy,
                State::Pausing | State::Held | State::Shelving(_) | State::Paused(_) => {
                    HostError::Paused
                }
                State::Stopping(ending) | State::Ended(ending) => HostError::Ended(ending),
            })));
            return None;
        }
        self.state.send_replace(state);
        let (backend, id, snapshot) = (self.backend.clone(), self.id.clone(), to.id.clone());
        let work = Box::pin(async move { backend.capture(&id, &to, then).await });
        Some(Capturing { snapshot, answer, until: Instant::now() + self.bounds.capture, work })
    }

    /// Tells whoever asked that it failed; what succeeded is returned.
    pub(super) fn end_capture(
        &self,
        capture: Option<Capturing>,
        outcome: Result<Captured, HostError>,
    ) -> Option<Asked> {
        let Capturing { snapshot, answer, .. } = capture?;
        match outcome {
            Ok(captured) => Some(Asked { snapshot, captured, answer }),
            Err(error) => {
                let why = describe(&error);
                tracing::warn!(sandbox.id = %self.id, error = why, "a sandbox could not be captured");
                drop(answer.send(Err(error)));
                None
            }
        }
    }

    /// Lets the machine go on. If it does not, the missing signs of life end it.
    pub(super) async fn proceed(&self) {
        match timeout(self.bounds.proceed, self.backend.proceed(&self.id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = describe(&error);
                tracing::error!(sandbox.id = %self.id, error, "a machine that stands still does not go on");
            }
            Err(_) => {
                tracing::error!(sandbox.id = %self.id, "letting a machine go on took too long");
            }
        }
    }
}
