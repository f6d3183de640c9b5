//! One connection of a client, request by request.
//!
//! Everything that a connection began ends with it: the connections to
//! destinations, the tunnels, and what is still being sent.

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use domain::allow::Scheme;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{io::AsyncReadExt as _, sync::mpsc, time::timeout};

use super::{
    body::Body,
    fields, forward,
    guarded::{Fault, Guarded},
    pool::{Key, Pool, Protocol},
    problem::problem,
    strict::MAX_HEAD,
};
use crate::{
    client::Client,
    code::{Code, Refusal},
    decide::Pinned,
    stream::{Stream, prefixed},
};

/// Requests at the same time on one HTTP/2 connection.
const STREAMS: u32 = 64;
/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What may be asked for on a connection.
pub(crate) enum Scope {
    /// Any destination.
    Proxy,
    /// Upstreams by name.
    Named,
    /// One destination, which was judged and pinned.
    One(Box<Pinned>, Scheme),
}

/// What the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// To be seen.
    Either,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// What goes on beside the requests, such as a tunnel.
pub(crate) type Job = BoxFuture<'static, ()>;

/// The connection, for those who answer its requests.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) scope: Scope,
    pub(crate) pool: Pool,
    pub(crate) jobs: mpsc::UnboundedSender<Job>,
    fault: Option<Fault>,
    requests: AtomicU64,
}

/// Serves a connection to its end. `ready` leads to the destination of
/// [`Scope::One`] already.
///
/// Boxed: what it serves may be a connection within a connection.
pub(crate) fn serve(
    client: Client,
    stream: Stream,
    begun: Vec<u8>,
    scope: Scope,
    speaks: Speaks,
    ready: Option<(Stream, Protocol)>,
) -> BoxFuture<'static, io::Result<()>> {
    Box::pin(serving(client, stream, begun, scope, speaks, ready))
}

async fn serving(
    client: Client,
    mut stream: Stream,
    mut begun: Vec<u8>,
    scope: Scope,
    speaks: Speaks,
    ready: Option<(Stream, Protocol)>,
) -> io::Result<()> {
    let speaks = match speaks {
        Speaks::Either => {
            let looking = look(&mut stream, &mut begun);
            timeout(client.engine.limits.head, looking)
                .await
                .map_err(|_| io::ErrorKind::TimedOut)??
        }
        known => known,
    };
    let pool = Pool::default();
    if let (Some((stream, protocol)), Scope::One(pinned, scheme)) = (ready, &scope) {
        let sender = pool.begin(stream, protocol).await.map_err(io::Error::other)?;
        pool.put(key(pinned, *scheme), sender);
    }
    let (jobs, wanted) = mpsc::unbounded_channel();
    let head = client.engine.limits.head;
    let requests = AtomicU64::new(0);
    if speaks == Speaks::Http2 {
        let connection = Arc::new(Connection { client, scope, pool, jobs, fault: None, requests });
        let service = service_fn(move |request| connection.clone().handle(request));
        let serving = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(64 * 1024)
            .initial_stream_window_size(256 * 1024)
            .initial_connection_window_size(4 * 1024 * 1024)
            .max_send_buf_size(256 * 1024)
            .keep_alive_interval(head)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(prefixed(begun, stream)), service);
        return run(serving, wanted).await;
    }
    let (guarded, fault) = Guarded::new(stream, begun);
    let fault = Some(fault);
    let connection = Arc::new(Connection { client, scope, pool, jobs, fault, requests });
    let service = service_fn(move |request| connection.clone().handle(request));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(2 * MAX_HEAD)
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(guarded), service)
        .with_upgrades();
    run(serving, wanted).await
}

/// What the first bytes are.
async fn look(stream: &mut Stream, begun: &mut Vec<u8>) -> io::Result<Speaks> {
    loop {
        let known = begun.len().min(PREFACE.len());
        if begun[..known] != PREFACE[..known] {
            return Ok(Speaks::Http1);
        }
        if known == PREFACE.len() {
            return Ok(Speaks::Http2);
        }
        if stream.read_buf(begun).await? == 0 {
            return Ok(Speaks::Http1);
        }
    }
}

/// Drives a connection, and what goes on beside it, to the end of both.
async fn run(
    serving: impl Future<Output = Result<(), hyper::Error>>,
    mut wanted: mpsc::UnboundedReceiver<Job>,
) -> io::Result<()> {
    let mut serving = std::pin::pin!(serving);
    let mut jobs = FuturesUnordered::new();
    let mut served = None;
    loop {
        tokio::select! {
            result = &mut serving, if served.is_none() => served = Some(result),
            Some(job) = wanted.recv(), if served.is_none() => jobs.push(job),
            Some(()) = jobs.next() => {}
            else => break,
        }
        if served.is_some() {
            while let Ok(job) = wanted.try_recv() {
                jobs.push(job);
            }
            if jobs.is_empty() {
                break;
            }
        }
    }
    served.unwrap_or(Ok(())).map_err(io::Error::other)
}

impl Connection {
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let version = request.version();
        let raw =
            request.method() == Method::CONNECT || request.headers().contains_key(header::UPGRADE);
        let answered = match self.fault(number) {
            Some(refusal) => {
                let (_, identified) = self.client.entry("a malformed request".into());
                Err(identified.err().unwrap_or(refusal))
            }
            None => self.answer(request).await,
        };
        let mut response = answered.unwrap_or_else(|refusal| {
            // Where the bytes went wrong meanwhile, that is why.
            problem(&self.fault(number).unwrap_or(refusal))
        });
        let passed =
            response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let over = self.fault(number).is_some() || (raw && !passed);
        if version != Version::HTTP_2 && over {
            // What follows such a request was let through unread.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    fn fault(&self, number: u64) -> Option<Refusal> {
        let malformed = self.fault.as_ref()?.of(number)?;
        Some(Refusal::new(Code::InvalidRequest, "http", malformed.to_string()))
    }

    async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        if let Err(forged) = fields::no_tags(request.headers()) {
            let (entry, _) = self.client.entry("a forged request".into());
            let refusal = Refusal::new(Code::UnidentifiedSandbox, "tags", forged.to_string());
            entry.refused(&refusal);
            return Err(refusal);
        }
        match &self.scope {
            Scope::Proxy => forward::proxied(self, request).await,
            Scope::Named => forward::named(self, request).await,
            Scope::One(pinned, scheme) => forward::to_one(self, request, pinned, *scheme).await,
        }
    }
}

/// What leads to a pinned destination.
pub(crate) fn key(pinned: &Pinned, scheme: Scheme) -> Key {
    let request = pinned.request();
    Key { host: request.host.clone(), port: request.port, scheme }
}

/// The stream under an upgraded connection, and what was read of it.
pub(crate) fn raw(upgraded: hyper::upgrade::Upgraded) -> Stream {
    match upgraded.downcast::<TokioIo<Guarded<Stream>>>() {
        Ok(parts) => {
            let (stream, rest) = parts.io.into_inner().into_parts();
            prefixed([parts.read_buf.as_ref(), &rest].concat(), stream)
        }
        Err(upgraded) => Box::new(TokioIo::new(upgraded)),
    }
}
