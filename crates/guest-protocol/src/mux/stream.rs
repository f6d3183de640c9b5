//! One stream of a session.
//!
//! yamux reports the end of a stream, its reset and the loss of the session
//! alike, as an end. Here only the first is one: what was cut off must not look
//! complete. One case stays alike: a peer that resets a stream after we ended our
//! side says so with the bytes of an end.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use super::ledger::Ledger;

/// One stream of a session. Dropping it without a shutdown resets it.
#[derive(Debug)]
pub struct Stream {
    inner: Compat<yamux::Stream>,
    id: u32,
    ledger: Ledger,
}

impl Stream {
    pub(super) fn new(inner: yamux::Stream, ledger: &Ledger) -> Self {
        Self { id: inner.id().val(), inner: inner.compat(), ledger: ledger.clone() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ledger.dropped(self.id);
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut stream.inner).poll_read(cx, buffer) {
            Poll::Pending => {
                stream.ledger.drained(stream.id);
                Poll::Pending
            }
            Poll::Ready(Ok(())) if buffer.filled().len() == before && buffer.remaining() > 0 => {
                let finished = stream.ledger.is_finished(stream.id);
                Poll::Ready(if finished { Ok(()) } else { Err(ErrorKind::ConnectionReset.into()) })
            }
            outcome => outcome,
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
