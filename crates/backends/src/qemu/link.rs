//! The byte pipe to a guest, as it is handed out.
//!
//! It keeps a second handle on its socket, by which the next pipe ends it: QEMU
//! serves one client, and whoever holds an old pipe must not keep it from
//! serving the new one. When the pipe goes, so does the handle.
//!
//! QEMU moves bytes between the socket and the guest's memory also while the
//! machine stands still. A [`Valve`] keeps our side from giving it any.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    task::{Context, Poll, Waker},
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
    valve: Arc<Valve>,
}

/// Stops and restarts every pipe of one machine.
#[derive(Debug, Default)]
pub(super) struct Valve {
    /// Held for reading while bytes move, so that nothing moves any more once
    /// it was written.
    shut: RwLock<bool>,
    waiting: Mutex<Vec<Waker>>,
}

impl Valve {
    /// From now on every pipe waits.
    pub(super) fn shut(&self) {
        *self.shut.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Lets every pipe go on.
    pub(super) fn open(&self) {
        *self.shut.write().unwrap_or_else(PoisonError::into_inner) = false;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).for_each(Waker::wake);
    }

    fn pass<T>(
        &self,
        cx: &mut Context<'_>,
        act: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let shut = self.shut.read().unwrap_or_else(PoisonError::into_inner);
        if !*shut {
            return act(cx);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl LinkPipe {
    /// Wraps a connection.
    pub(super) fn new(stream: UnixStream, valve: Arc<Valve>) -> io::Result<Self> {
        let handle = Arc::new(stream.as_fd().try_clone_to_owned()?);
        Ok(Self { stream, handle, valve })
    }

    /// A handle that does not keep the connection open.
    pub(super) fn handle(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.handle)
    }
}

impl AsyncRead for LinkPipe {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, valve, .. } = self.get_mut();
        valve.pass(cx, |cx| Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for LinkPipe {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, valve, .. } = self.get_mut();
        valve.pass(cx, |cx| Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    use super::*;

    #[tokio::test]
    async fn a_shut_valve_stops_both_ways_and_loses_nothing() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let valve = Arc::new(Valve::default());
        let mut pipe = LinkPipe::new(near, Arc::clone(&valve)).unwrap();
        valve.shut();
        far.write_all(b"in").await.unwrap();
        let mut bytes = [0; 2];
        let moment = Duration::from_millis(20);
        assert!(timeout(moment, pipe.read_exact(&mut bytes)).await.is_err());
        assert!(timeout(moment, pipe.write_all(b"out")).await.is_err());
        let reading = tokio::spawn(async move {
            pipe.read_exact(&mut bytes).await.unwrap();
            pipe.write_all(b"out").await.unwrap();
            bytes
        });
        tokio::task::yield_now().await;
        valve.open();
        assert_eq!(&reading.await.unwrap(), b"in");
        let mut bytes = [0; 3];
        far.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"out");
    }
}
