//! The socket: accepting, bounding, and coming to an end.
//!
//! The accept loop is our own because of how it has to end. A shutdown first
//! stops accepting, then ends every stream (they watch the same token), then
//! waits for what is left, at most [`Options::drain`], and then drops it. A loop
//! that waits for open streams would wait as long as a client likes.
//!
//! Invariants:
//!
//! - Every connection is a task of one set, which is empty when `serve` returns.
//! - A client that sends its header slowly, or none, holds a connection for
//!   [`Options::header_timeout`] and no longer, and so does one without a good
//!   token. A stranger never keeps a caller out ([`crate::newcomers`]).
//! - A client that does not take its answer is cut off ([`crate::pace`]).
//! - A connection that broke off in the middle of an answer is reset or closed
//!   without the final chunk, so that the client can tell.

use std::{io, net::SocketAddr, time::Duration};

use axum::Router;
use control::Control;
use hyper::{
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Options,
    app::App,
    hosts::Hosts,
    limits,
    memory::Memory,
    newcomers::{Newcomers, Visitor},
    numbers::{Connected, Counters},
    pace::{Pace, Paced},
    router,
};

/// How long to wait when the system has no more sockets to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// One of so many connections is for those without a good token.
const STRANGERS: usize = 4;
/// How long, and how much, a closed connection is still read. A client that is
/// busy sending would otherwise get a reset in place of the answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 64 * 1024 * 1024;

/// The server, ready to listen.
#[derive(Clone, Debug)]
pub struct Server {
    control: Control,
    options: Options,
}

impl Server {
    /// A server over these use cases.
    pub fn new(control: Control, options: Options) -> Self {
        Self { control, options }
    }

    /// Serves until `shutdown` is cancelled and everything has come to its end.
    ///
    /// # Errors
    /// The listener's address cannot be read.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> io::Result<()> {
        let hosts = Hosts::new(listener.local_addr()?, &self.options.names);
        let tasks = TaskTracker::new();
        let counters = Counters::default();
        let app = App {
            control: self.control,
            exec_grace: self.options.exec_grace,
            memory: Memory::new(self.options.memory),
            counters: counters.clone(),
            stop: shutdown.clone(),
            tasks: tasks.clone(),
        };
        let service = router::service(app, hosts);
        let most = self.options.max_connections;
        let strangers = most / STRANGERS;
        let newcomers = Newcomers::new(strangers, most - strangers);
        let mut connections = JoinSet::new();
        while let Some(stream) = next(&listener, &shutdown).await {
            let serving = Serving {
                service: service.clone(),
                visitor: newcomers.enter(),
                connected: counters.connected(),
                pace: Pace::new(&self.options),
                header_timeout: self.options.header_timeout,
            };
            connections.spawn(serving.connection(stream, shutdown.clone()));
            while connections.try_join_next().is_some() {}
        }
        drop(listener);
        tasks.close();
        let draining = async {
            while connections.join_next().await.is_some() {}
            tasks.wait().await;
        };
        if timeout(self.options.drain, draining).await.is_err() {
            tracing::warn!(connections = connections.len(), "cut off what did not end in time");
            connections.shutdown().await;
        }
        Ok(())
    }
}

/// The next connection; none when it is time to stop.
async fn next(listener: &TcpListener, shutdown: &CancellationToken) -> Option<TcpStream> {
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        accepted = accepting => Some(accepted),
    }
}

/// What one connection is served with.
struct Serving {
    service: Router,
    visitor: Visitor,
    connected: Connected,
    pace: Pace,
    header_timeout: Duration,
}

impl Serving {
    /// One connection, to its end.
    async fn connection(self, stream: TcpStream, shutdown: CancellationToken) {
        let Self { service, visitor, connected: _connected, pace, header_timeout } = self;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let stream = Paced::new(stream, pace.clone());
        let service = TowerToHyperService::new(service);
        let service = service_fn(|mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(visitor.clone());
            let (answering, pace) = (service.call(request), pace.clone());
            Box::pin(async move { answering.await.inspect(|response| pace.follow(response)) })
        });
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_headers(limits::HEADERS)
            .max_header_size(limits::HEADER_BYTES)
            .max_buf_size(limits::HEADER_BYTES * 2)
            .serve_connection(TokioIo::new(stream), service);
        let mut introduction = std::pin::pin!(sleep(header_timeout));
        let (mut stopping, mut introduced) = (false, false);
        let ended = loop {
            tokio::select! {
                ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => {
                    break ended;
                }
                () = &mut introduction, if !introduced => {
                    introduced = true;
                    if !visitor.is_settled() {
                        return tracing::debug!("a connection showed no good token in time");
                    }
                }
                () = visitor.pushed_out().cancelled() => {
                    return tracing::debug!("a connection without a good token made room");
                }
                () = shutdown.cancelled(), if !stopping => {
                    stopping = true;
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
            }
        };
        match ended {
            Ok(()) => linger(connection.into_parts().io.into_inner().into_inner()).await,
            // The peer's doing: it hung up, was slow, or spoke something else. Or
            // ours: an answer that broke off. Dropping the socket is the message.
            Err(error) => tracing::debug!(%error, "a connection ended early"),
        }
    }
}

/// Closes our side and reads on for a moment.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let reading = async {
        let mut rest = stream.take(LINGER_BYTES);
        let mut buffer = vec![0; 16 * 1024];
        while matches!(rest.read(&mut buffer).await, Ok(n) if n > 0) {}
    };
    // Either way the connection is over.
    drop(timeout(LINGER, reading).await);
}

/// Where a server listens unless told otherwise: this machine only.
pub const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);
