//! The host's end of the link into one sandbox.
//!
//! [`establish`] turns the byte pipe of a backend into one session and gives
//! the handles; the session lives while its future is polled. A guest may open
//! egress streams and nothing else ([`crate::egress`]); where nobody takes them,
//! every stream it opens is closed at once (S9, U21).

use std::{io, time::Duration};

use guest_protocol::{
    control::{self, Request, Response},
    hello::{Hello, VERSION},
    link::Transport,
    mux::{self, Limits, Opener, Role, Session, Stream},
    preface::{self, Preface},
};
use tokio::{sync::mpsc, time::timeout};

pub use guest_protocol::link::Pipe;

use crate::backend;

/// How long a guest may take to answer a hello.
pub const GREETING: Duration = Duration::from_secs(20);

/// An established session, to open streams on.
#[derive(Clone, Debug)]
pub struct Link {
    opener: Opener,
}

/// Why a control request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The guest says that it could not.
    #[error("the guest could not do it: {0}")]
    Failed(String),
    /// The link broke, or the answer did not come in time.
    #[error("the guest did not answer")]
    Lost(#[source] io::Error),
}

/// Greets the guest behind `pipe`.
///
/// Returns the handles and the future that must be polled for as long as the
/// link is to live. It ends when the guest or the pipe is gone.
pub async fn establish(
    pipe: Box<dyn backend::Pipe>,
    state: Pipe,
    epoch: u32,
) -> io::Result<(Link, impl Future<Output = io::Result<()>> + Send + use<>)> {
    let closing = |mut incoming: mpsc::Receiver<Stream>| async move {
        while incoming.recv().await.is_some() {}
    };
    establish_taking(pipe, state, epoch, closing).await
}

/// The same, with somebody who takes the streams that the guest opens.
pub(crate) async fn establish_taking<F, T>(
    pipe: Box<dyn backend::Pipe>,
    state: Pipe,
    epoch: u32,
    take: F,
) -> io::Result<(Link, impl Future<Output = io::Result<()>> + Send + use<F, T>)>
where
    F: FnOnce(mpsc::Receiver<Stream>) -> T + Send,
    T: Future<Output = ()> + Send,
{
    let mut transport = Transport::new(pipe);
    let hello = Hello { version: VERSION, epoch };
    timeout(GREETING, transport.greet(&hello, state)).await.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, "the guest did not answer the hello")
    })??;
    let (Session { opener, incoming }, driving) =
        mux::session(transport, Role::Host, Limits::default());
    let taking = take(incoming);
    let living = async move {
        tokio::pin!(driving, taking);
        // Both are polled; the session's end is the end.
        tokio::select! {
            ended = &mut driving => ended,
            () = &mut taking => driving.await,
        }
    };
    Ok((Link { opener }, living))
}

impl Link {
    /// Opens a stream and says what it is for.
    pub async fn open(&self, preface: Preface) -> io::Result<Stream> {
        let mut stream = self.opener.open().await?;
        preface::write(&mut stream, preface).await?;
        Ok(stream)
    }

    /// Opens a control stream.
    pub async fn control(&self) -> io::Result<Control> {
        Ok(Control { stream: self.open(Preface::Control).await? })
    }
}

/// A control stream: one request and its answer at a time.
#[derive(Debug)]
pub struct Control {
    stream: Stream,
}

impl Control {
    /// Speaks over a stream whose preface was written.
    pub(crate) fn over(stream: Stream) -> Self {
        Self { stream }
    }

    /// Sends a request and waits at most `bound` for its answer.
    pub async fn call(
        &mut self,
        request: &Request,
        bound: Duration,
    ) -> Result<Response, ControlError> {
        let exchange = async {
            control::write(&mut self.stream, request).await?;
            control::read(&mut self.stream).await
        };
        match timeout(bound, exchange).await {
            Ok(Ok(Response::Failed { message })) => {
                // Guest text: bounded, and without anything a terminal obeys.
                let text = message.chars().filter(|c| !c.is_control()).take(400).collect();
                Err(ControlError::Failed(text))
            }
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(ControlError::Lost(error)),
            Err(_) => Err(ControlError::Lost(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Asks for a sign of life.
    pub async fn ping(&mut self, nonce: u64, bound: Duration) -> Result<(), ControlError> {
        match self.call(&Request::Ping { nonce }, bound).await? {
            Response::Pong { nonce: answered } if answered == nonce => Ok(()),
            other => {
                let text = format!("answered a ping with {other:?}");
                Err(ControlError::Lost(io::Error::new(io::ErrorKind::InvalidData, text)))
            }
        }
    }
}
