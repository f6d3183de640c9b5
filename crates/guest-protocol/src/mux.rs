//! Many streams over one session.
//!
//! yamux, with limits lowered from defaults that trust the peer: its receive
//! window alone may grow to 1 GiB. What the peer sends is checked before yamux
//! sees it, and small frames are joined. A session lives while its driving future is
//! polled; when that ends, every stream ends with it.
//!
//! Either side may open streams here. Who may open what kind is decided by
//! whoever reads the [`crate::preface`].

mod guard;
mod ledger;
mod stream;

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, ConnectionError, Mode};

pub use self::stream::Stream;
use self::{guard::Guard, ledger::Ledger};

/// Which end of the session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The trusted end.
    Host,
    /// The end inside the sandbox.
    Guest,
}

/// How much a session may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams open at the same time.
    pub streams: usize,
    /// Bytes received and not yet read, over all streams. What a peer makes them
    /// cost besides, by cutting them small, is at most the same again.
    pub window: usize,
}

impl Default for Limits {
    /// 64 streams of the host and 256 of the guest, and 80 MiB: yamux needs
    /// 256 KiB for each stream.
    fn default() -> Self {
        Self { streams: 320, window: 80 * 1024 * 1024 }
    }
}

/// The handles of a session.
#[derive(Debug)]
pub struct Session {
    /// Opens streams.
    pub opener: Opener,
    /// Streams that the other side opened.
    pub incoming: mpsc::Receiver<Stream>,
}

/// Opens streams. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Opener {
    requests: mpsc::Sender<oneshot::Sender<io::Result<Stream>>>,
}

impl Opener {
    /// Opens a stream.
    ///
    /// # Errors
    /// `ConnectionReset` when the session has ended, `QuotaExceeded` when the
    /// limit of open streams is reached.
    pub async fn open(&self) -> io::Result<Stream> {
        let (answer, opened) = oneshot::channel();
        let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
        self.requests.send(answer).await.map_err(|_| gone())?;
        opened.await.map_err(|_| gone())?
    }
}

/// Starts a session over `io`.
///
/// Nothing happens before the returned future is polled; it ends when the
/// session does. Dropping it ends the session at once.
pub fn session<IO>(
    io: IO,
    role: Role,
    limits: Limits,
) -> (Session, impl Future<Output = io::Result<()>>)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut config = Config::default();
    config.set_max_num_streams(limits.streams);
    config.set_max_connection_receive_window(Some(limits.window));
    let mode = match role {
        Role::Host => Mode::Client,
        Role::Guest => Mode::Server,
    };
    let ledger = Ledger::new(limits.streams);
    let connection = Connection::new(Guard::new(io, ledger.clone()).compat(), config, mode);
    let (requests, wanted) = mpsc::channel(16);
    // A burst of all that may be open is no excess.
    let (arrived, incoming) = mpsc::channel(limits.streams);
    (Session { opener: Opener { requests }, incoming }, drive(connection, ledger, wanted, arrived))
}

async fn drive<IO>(
    mut connection: Connection<Compat<Guard<IO>>>,
    ledger: Ledger,
    mut wanted: mpsc::Receiver<oneshot::Sender<io::Result<Stream>>>,
    arrived: mpsc::Sender<Stream>,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut waiting: Option<oneshot::Sender<io::Result<Stream>>> = None;
    poll_fn(|cx| {
        // Opening may block on the limit; polling for inbound frames must not
        // wait for it, or the frames that free the limit never arrive.
        while poll_open(&mut connection, &ledger, &mut wanted, &mut waiting, cx) {}
        loop {
            match connection.poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => {
                    // A full queue drops the stream, which resets it: a peer
                    // that opens faster than we take them loses the excess.
                    if arrived.try_send(Stream::new(stream, &ledger)).is_err() {
                        continue;
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(cause(error))),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// Serves one request to open, if it can. Whether another should be tried.
fn poll_open<IO>(
    connection: &mut Connection<Compat<Guard<IO>>>,
    ledger: &Ledger,
    wanted: &mut mpsc::Receiver<oneshot::Sender<io::Result<Stream>>>,
    waiting: &mut Option<oneshot::Sender<io::Result<Stream>>>,
    cx: &mut Context<'_>,
) -> bool
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    if waiting.is_none() {
        match wanted.poll_recv(cx) {
            Poll::Ready(Some(answer)) => *waiting = Some(answer),
            Poll::Ready(None) | Poll::Pending => return false,
        }
    }
    let opened = match pin!(poll_fn(|cx| connection.poll_new_outbound(cx))).poll(cx) {
        Poll::Pending => return false,
        Poll::Ready(Ok(stream)) => {
            ledger.opened(stream.id().val());
            Ok(Stream::new(stream, ledger))
        }
        Poll::Ready(Err(error)) => Err(cause(error)),
    };
    if let Some(answer) = waiting.take() {
        // The caller may have given up; the stream is then dropped, which resets it.
        drop(answer.send(opened));
    }
    true
}

fn cause(error: ConnectionError) -> io::Error {
    match error {
        ConnectionError::Io(error) => error,
        ConnectionError::Closed => io::ErrorKind::ConnectionReset.into(),
        ConnectionError::TooManyStreams => {
            io::Error::new(io::ErrorKind::QuotaExceeded, "too many open streams to this sandbox")
        }
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

#[cfg(test)]
mod tests;
