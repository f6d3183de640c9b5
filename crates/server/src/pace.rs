//! A client has to take its answer.
//!
//! What a client does not read stays in memory here, so a connection whose
//! socket accepts no byte for too long is cut. Only waiting for the socket
//! counts: a stream that has nothing to say is not slow. One byte that the
//! socket takes begins the time anew, and the socket takes bytes only as its
//! peer acknowledges them, so this bounds silence, not speed.
//!
//! There are two bounds. An answer that lies whole in memory gets
//! [`Options::answer_pause`]. A stream holds a few pieces whatever its reader
//! does, and its reader may be a person who looks at one page of it, so it gets
//! [`Options::stream_pause`].

use std::{
    future::Future as _,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::Options;

/// Marks an answer whose body is produced as it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed;

/// Which of the two bounds applies to a connection now. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    streamed: Arc<AtomicBool>,
    answer: Duration,
    stream: Duration,
}

impl Pace {
    /// A connection's pace before its first answer.
    pub(crate) fn new(options: &Options) -> Self {
        let (answer, stream) = (options.answer_pause, options.stream_pause);
        Self { streamed: Arc::default(), answer, stream }
    }

    /// Notes what kind of answer is written from now on.
    pub(crate) fn follow(&self, response: &http::Response<impl Sized>) {
        let streamed = response.extensions().get::<Streamed>().is_some();
        self.streamed.store(streamed, Ordering::Relaxed);
    }

    fn bound(&self) -> Duration {
        if self.streamed.load(Ordering::Relaxed) { self.stream } else { self.answer }
    }
}

/// A socket that fails when its peer takes nothing for too long.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    socket: S,
    pace: Pace,
    /// There while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(crate) fn new(socket: S, pace: Pace) -> Self {
        Self { socket, pace, waiting: None }
    }

    pub(crate) fn into_inner(self) -> S {
        self.socket
    }

    /// What a write came to, or that it has waited long enough.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let bound = self.pace.bound();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(bound)));
        if waiting.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // Should somebody ask again, there is a new time to wait.
        waiting.as_mut().reset(Instant::now() + bound);
        let error = io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer");
        Poll::Ready(Err(error))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A reader that does nothing is waited for as long as the kind of answer
    /// allows, and not longer.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_nothing_is_cut_off() {
        let options = Options::default();
        for (streamed, bound) in [(false, options.answer_pause), (true, options.stream_pause)] {
            let (near, _far) = tokio::io::duplex(16);
            let pace = Pace::new(&options);
            let mut response = http::Response::new(());
            if streamed {
                response.extensions_mut().insert(Streamed);
            }
            pace.follow(&response);
            let begun = Instant::now();
            let error = Paced::new(near, pace).write_all(&[0; 64]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(begun.elapsed().as_secs(), bound.as_secs());
        }
    }

    /// One that reads a little now and then is not, and neither is a writer that
    /// has nothing to write.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_pauses_is_waited_for() {
        let (near, mut far) = tokio::io::duplex(16);
        let options = Options::default();
        let pause = options.answer_pause;
        let mut paced = Paced::new(near, Pace::new(&options));
        let writing = async {
            for _ in 0..4 {
                paced.write_all(&[0; 16]).await.unwrap();
                sleep(pause * 2).await;
            }
        };
        let reading = async {
            for _ in 0..4 {
                sleep(pause - Duration::from_secs(1)).await;
                far.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        tokio::join!(writing, reading);
    }
}
