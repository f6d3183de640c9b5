//! Bodies on their way: counted, and cut off when the rules no longer allow them.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

use crate::{client::Entry, code::Refusal, splice::Moved};

/// Why a body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// Any body.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;
/// Done when a body must not go on.
pub(crate) type Revoked = Pin<Box<dyn Future<Output = Refusal> + Send>>;

/// Which way a body goes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// From the sandbox.
    Up,
    /// To the sandbox.
    Down,
}

/// A body whose bytes are counted.
pub(crate) struct Counted<B> {
    body: B,
    entry: Entry,
    way: Way,
    revoked: Option<Revoked>,
}

impl<B> Counted<B> {
    /// Counts `body` in `entry`, which stays open while it moves.
    pub(crate) fn new(body: B, entry: Entry, way: Way, revoked: Option<Revoked>) -> Self {
        Self { body, entry, way, revoked }
    }

    fn counter(moved: &Moved, way: Way) -> &AtomicU64 {
        match way {
            Way::Up => &moved.up,
            Way::Down => &moved.down,
        }
    }
}

impl<B> http_body::Body for Counted<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Some(revoked) = &mut this.revoked
            && let Poll::Ready(refusal) = revoked.as_mut().poll(cx)
        {
            this.revoked = None;
            this.entry.refused(&refusal);
            return Poll::Ready(Some(Err(refusal.into())));
        }
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let counter = Self::counter(this.entry.moved(), this.way);
            counter.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
