//! Bodies on their way through the edge, with flat memory both ways.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use guest_protocol::client::{Body, BoxError};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::Leash;

/// How far a request's body has come, and whose turn it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    bytes: AtomicU64,
    client_is_due: AtomicBool,
}

impl Meter {
    /// Bytes that went in so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Whether the guest would take more and the client has not sent it.
    pub(crate) fn client_is_due(&self) -> bool {
        self.0.client_is_due.load(Ordering::Relaxed)
    }
}

/// A request's body that is counted. Trailers are dropped.
#[derive(Debug)]
pub(crate) struct Metered {
    body: Body,
    meter: Meter,
}

impl Metered {
    pub(crate) fn new(body: Body, meter: Meter) -> Self {
        Self { body, meter }
    }
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let progress = &self.meter.0;
        progress.client_is_due.store(polled.is_pending(), Ordering::Relaxed);
        polled.map(|frame| match frame {
            Some(Ok(frame)) => frame.into_data().ok().map(|data| {
                progress.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                Ok(Frame::data(data))
            }),
            other => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The connection to a guest, to be polled by whoever waits for its answer.
pub(crate) type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// The body of a guest's answer.
///
/// It owns the connection it arrives on, so dropping it closes the stream and no
/// task is left to do so. It ends in an error when the guest's side breaks off or
/// stalls, and when the server stops. Trailers are dropped.
pub(crate) struct Answer {
    connection: Option<Connection>,
    incoming: Incoming,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    patience: Option<Patience>,
    leash: Option<Leash>,
}

/// How long the guest may keep its reader waiting. Time that the reader itself
/// takes does not count.
struct Patience {
    limit: Duration,
    until: Pin<Box<Sleep>>,
    waiting: bool,
}

impl Patience {
    /// Notes whether the reader waits; resolves when it has waited too long.
    fn poll(&mut self, waiting: bool, cx: &mut Context<'_>) -> Poll<()> {
        if waiting && !self.waiting {
            self.until.as_mut().reset(Instant::now() + self.limit);
        }
        self.waiting = waiting;
        if waiting { self.until.as_mut().poll(cx) } else { Poll::Pending }
    }
}

impl Answer {
    pub(crate) fn new(
        connection: Option<Connection>,
        incoming: Incoming,
        patience: Option<Duration>,
        stop: CancellationToken,
    ) -> Self {
        let patience =
            patience.map(|limit| Patience { limit, until: Box::pin(sleep(limit)), waiting: false });
        let stop = Box::pin(stop.cancelled_owned());
        Self { connection, incoming, stop, patience, leash: None }
    }

    /// Pulls the leash if this is dropped before the guest has said all.
    pub(crate) fn hold(&mut self, leash: Option<Leash>) {
        self.leash = leash;
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(io::Error::other("the server is shutting down"))));
        }
        // The connection moves the bytes; its error reaches us through the body.
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(cx).is_ready()
        {
            self.connection = None;
        }
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if let Some(patience) = &mut self.patience
            && patience.poll(polled.is_pending(), cx).is_ready()
        {
            return Poll::Ready(Some(Err(io::Error::other("the guest sends nothing"))));
        }
        if matches!(polled, Poll::Ready(None | Some(Err(_))))
            && let Some(leash) = &mut self.leash
        {
            leash.let_go();
        }
        polled.map(|frame| match frame {
            Some(Ok(frame)) => frame.into_data().ok().map(|data| Ok(Frame::data(data))),
            Some(Err(error)) => Some(Err(io::Error::other(error))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.incoming)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.incoming)
    }
}
