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
//!   [`Options::header_timeout`] and no longer.
//! - A connection that broke off in the middle of an answer is reset or closed
//!   without the final chunk, so that the client can tell.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use control::Control;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{Options, app::App, hosts::Hosts, limits, memory::Memory, router};

/// How long to wait when the system has no more sockets to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
        let app = App {
            control: self.control,
            exec_grace: self.options.exec_grace,
            memory: Memory::new(self.options.memory),
            stop: shutdown.clone(),
        };
        let service = router::service(app, hosts);
        let slots = Arc::new(Semaphore::new(self.options.max_connections));
        let mut connections = JoinSet::new();
        while let Some((stream, slot)) = next(&listener, &slots, &shutdown).await {
            let connection =
                connection(stream, service.clone(), self.options.header_timeout, shutdown.clone());
            connections.spawn(async move {
                connection.await;
                drop(slot);
            });
            while connections.try_join_next().is_some() {}
        }
        drop(listener);
        let draining = async { while connections.join_next().await.is_some() {} };
        if timeout(self.options.drain, draining).await.is_err() {
            tracing::warn!(connections = connections.len(), "cut off what did not end in time");
            connections.shutdown().await;
        }
        Ok(())
    }
}

/// The next connection with its slot; none when it is time to stop.
async fn next(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let accepting = async {
        // Waiting for a slot before accepting leaves the rest to the kernel's
        // queue, which is bounded.
        let slot = Arc::clone(slots).acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, slot)),
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
        accepted = accepting => accepted,
    }
}

/// One connection, to its end.
async fn connection(
    stream: TcpStream,
    service: Router,
    header_timeout: Duration,
    shutdown: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_headers(limits::HEADERS)
        .max_header_size(limits::HEADER_BYTES)
        .max_buf_size(limits::HEADER_BYTES * 2)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut stopping = false;
    let ended = loop {
        tokio::select! {
            ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => break ended,
            () = shutdown.cancelled(), if !stopping => {
                stopping = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    match ended {
        Ok(()) => linger(connection.into_parts().io.into_inner()).await,
        // The peer's doing: it hung up, was slow, or spoke something else. Or
        // ours: an answer that broke off. Dropping the socket is the message.
        Err(error) => tracing::debug!(%error, "a connection ended early"),
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
