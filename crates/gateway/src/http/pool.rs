//! Connections to destinations, kept for the next request of the same client.
//!
//! They belong to one connection of one client and end with it. One that is
//! used again leads to the address that was pinned when it was made. A request
//! is never sent twice: only one that a connection handed back unsent goes to
//! another.

use std::sync::{Mutex, PoisonError};

use domain::{allow::Scheme, host::Host};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;

use super::body::Body;
use crate::stream::Stream;

/// Idle connections that are kept.
const IDLE: usize = 4;

/// What a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) scheme: Scheme,
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// A connection that takes a request.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// The connections of one client's connection.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<(Key, Sender)>>,
    driving: Mutex<JoinSet<()>>,
}

/// Why there is no answer.
pub(crate) enum SendError {
    /// Nothing was sent; the request is as it was.
    Unsent(Box<Request<Body>>),
    /// It was sent, or part of it.
    Failed(hyper::Error),
}

impl Sender {
    /// What is spoken.
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Self::Http1(_) => Protocol::Http1,
            Self::Http2(_) => Protocol::Http2,
        }
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        let sent = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut error| match error.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Failed(error.into_error()),
        })
    }

    fn another(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
        }
    }

    fn is_ready(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_ready(),
            Self::Http2(sender) => sender.is_ready(),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }
}

impl Pool {
    /// A connection to `key` that is ready now.
    pub(crate) fn take(&self, key: &Key) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, sender)| !sender.is_closed());
        let at = idle.iter().position(|(to, sender)| to == key && sender.is_ready())?;
        match idle[at].1.another() {
            Some(sender) => Some(sender),
            None => Some(idle.swap_remove(at).1),
        }
    }

    /// Keeps a connection for later; it may still be busy with an answer.
    pub(crate) fn put(&self, key: Key, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = matches!(sender, Sender::Http2(_));
        if sender.is_closed() || (shared && idle.iter().any(|(to, _)| *to == key)) {
            return;
        }
        if idle.len() >= IDLE {
            idle.remove(0);
        }
        idle.push((key, sender));
    }

    /// Begins to speak HTTP on a stream that leads to a destination.
    pub(crate) async fn begin(
        &self,
        stream: Stream,
        protocol: Protocol,
    ) -> Result<Sender, hyper::Error> {
        let io = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 => {
                let mut builder = http1::Builder::new();
                builder.preserve_header_case(true).max_headers(super::strict::MAX_HEADERS);
                let (mut sender, connection) = builder.handshake(io).await?;
                self.drive(async move { drop(connection.with_upgrades().await) });
                sender.ready().await?;
                Ok(Sender::Http1(sender))
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .initial_stream_window_size(1024 * 1024)
                    .initial_connection_window_size(4 * 1024 * 1024)
                    .max_header_list_size(64 * 1024);
                let (mut sender, connection) = builder.handshake(io).await?;
                self.drive(async move { drop(connection.await) });
                sender.ready().await?;
                Ok(Sender::Http2(sender))
            }
        }
    }

    /// Owned here: it ends with the pool.
    fn drive(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut driving = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
        while driving.try_join_next().is_some() {}
        driving.spawn(connection);
    }
}
