//! What all requests together may hold in memory.
//!
//! Most requests need next to nothing, because bodies stream. The few that are
//! read whole (JSON, the first message of a start) or kept (the output of exec)
//! take from one budget as they grow, and so does every answer that waits whole
//! for its client, by the length in which it is sent. So a thousand connections
//! with the largest request or answer each cannot add up to more than the budget,
//! and nobody pays for a limit that is not used.
//!
//! The budget counts what a client can make us hold for longer than a moment.
//! Reading JSON into fields and writing it again takes some multiple of that, on
//! as many threads as there are, and no client can draw it out.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{app::App, error::ApiError, pace::Streamed};

/// The unit of the budget. Small requests take one.
const UNIT: usize = 16 * 1024;

/// The budget. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Semaphore>);

/// A share of the budget, given back on drop.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Memory,
    permit: Option<OwnedSemaphorePermit>,
    used: usize,
}

impl Memory {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    /// How many bytes are left.
    pub(crate) fn left(&self) -> u64 {
        (self.0.available_permits() * UNIT) as u64
    }

    /// A share that holds nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share { memory: self.clone(), permit: None, used: 0 }
    }
}

impl Share {
    /// Gives back all but `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.used = self.used.min(bytes);
        let kept = self.used.div_ceil(UNIT);
        if let Some(permit) = &mut self.permit {
            let spare = permit.num_permits().saturating_sub(kept);
            drop(permit.split(spare));
        }
    }

    /// The bytes as a body that holds the share for as long as it holds them,
    /// wherever they wait.
    pub(crate) fn hold(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Held { bytes, _share: self })
    }

    /// Takes `more` bytes, or nothing if the budget has not so much left.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (self.used + more).div_ceil(UNIT).saturating_sub(held);
        if missing > 0 {
            let Ok(missing) = u32::try_from(missing) else { return false };
            let Ok(taken) = Arc::clone(&self.memory.0).try_acquire_many_owned(missing) else {
                return false;
            };
            match &mut self.permit {
                Some(permit) => permit.merge(taken),
                None => self.permit = Some(taken),
            }
        }
        self.used += more;
        true
    }
}

/// Bytes and the share that pays for them.
struct Held<B> {
    bytes: B,
    _share: Share,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Marks an answer whose memory is paid for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paid;

/// Charges an answer that lies whole in memory until its client has taken it.
pub(crate) async fn charge(State(app): State<App>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let extensions = response.extensions();
    if extensions.get::<Streamed>().is_some() || extensions.get::<Paid>().is_some() {
        return response;
    }
    let Some(length) = response.body().size_hint().exact().filter(|length| *length > 0) else {
        return response;
    };
    let mut share = app.memory.share();
    if !usize::try_from(length).is_ok_and(|length| share.grow(length)) {
        return ApiError::busy().into_response();
    }
    let (parts, mut body) = response.into_parts();
    // It is one piece, and there already.
    let whole = body.frame().await.and_then(|frame| frame.ok()?.into_data().ok());
    Response::from_parts(parts, Body::from(share.hold(whole.unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_lives_as_long_as_the_last_of_its_bytes() {
        let memory = Memory::new(4 * UNIT);
        let mut share = memory.share();
        assert!(share.grow(4 * UNIT));
        share.shrink(2 * UNIT - 1);
        let mut whole = share.hold(vec![7; 2 * UNIT - 1]);
        assert!(!memory.share().grow(3 * UNIT) && memory.share().grow(2 * UNIT));
        let piece = whole.split_to(1);
        drop(whole);
        assert!(!memory.share().grow(3 * UNIT), "the piece keeps all of it in memory");
        drop(piece);
        assert!(memory.share().grow(4 * UNIT));
    }

    #[test]
    fn shares_together_never_exceed_the_budget() {
        let memory = Memory::new(4 * UNIT);
        let (mut one, mut other) = (memory.share(), memory.share());
        assert!(one.grow(1) && one.grow(UNIT - 1), "what fits into a unit takes one");
        assert!(other.grow(3 * UNIT));
        assert!(!one.grow(1));
        assert!(one.grow(0));
        drop(other);
        assert!(one.grow(3 * UNIT));
        assert!(!memory.share().grow(1));
        drop(one);
        assert!(memory.share().grow(4 * UNIT));
    }
}
