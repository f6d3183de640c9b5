//! The byte pipe to a guest, as it is handed out.
//!
//! It keeps a second handle on its socket, by which the next pipe ends it: QEMU
//! serves one client, and whoever holds an old pipe must not keep it from
//! serving the new one. When the pipe goes, so does the handle.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};

/// A connection to a guest.
#[derive(Debug)]
pub(super) struct LinkPipe {
    stream: UnixStream,
    handle: Arc<OwnedFd>,
}

impl LinkPipe {
    /// Wraps a connection.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let handle = Arc::new(stream.as_fd().try_clone_to_owned()?);
        Ok(Self { stream, handle })
    }

    /// A handle that does not keep the connection open.
    pub(super) fn handle(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.handle)
    }
}

impl AsyncRead for LinkPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for LinkPipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
