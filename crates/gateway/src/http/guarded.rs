//! A client's stream that lets through what [`super::strict`] passed.
//!
//! The HTTP library reads from here. Where the bytes go wrong, it is given a
//! request of ours in their place, and nothing after it: so the refusal is
//! written in turn, behind the answers to what came before. Where they go wrong
//! within a body, reading fails, and what was being forwarded is cut off.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::strict::{Malformed, Requests};

/// Read at once.
const READ: usize = 16 * 1024;
/// In the place of what was refused.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: malformed.invalid\r\nconnection: close\r\n\r\n";

/// What was refused, for whoever answers.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<Mutex<Option<(u64, Malformed)>>>);

impl Fault {
    /// Why the `request`th request of the connection, from one, is none of the
    /// client's, or its body went wrong.
    pub fn of(&self, request: u64) -> Option<Malformed> {
        let fault = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fault.filter(|(at, _)| *at <= request).map(|(_, malformed)| malformed)
    }

    fn set(&self, request: u64, malformed: Malformed) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((request, malformed));
    }
}

/// The stream.
#[derive(Debug)]
pub struct Guarded<S> {
    stream: S,
    requests: Requests,
    fault: Fault,
    /// Read, and from `passed` on not yet passed.
    buffer: Vec<u8>,
    start: usize,
    passed: usize,
    /// Nothing more is read.
    over: bool,
    /// The last request is ours. What reads it closes the connection; until then
    /// an end would cut off the answers before it.
    stands_in: bool,
}

impl<S> Guarded<S> {
    /// Guards `stream`, of which `begun` was read already.
    pub fn new(stream: S, begun: Vec<u8>) -> (Self, Fault) {
        let fault = Fault::default();
        let guarded = Self {
            stream,
            requests: Requests::default(),
            fault: fault.clone(),
            buffer: begun,
            start: 0,
            passed: 0,
            over: false,
            stands_in: false,
        };
        (guarded, fault)
    }

    /// The stream itself and what was read of it and not handed on.
    pub fn into_parts(mut self) -> (S, Vec<u8>) {
        (self.stream, self.buffer.split_off(self.start))
    }

    /// Passes what can pass now.
    fn judge(&mut self) -> io::Result<()> {
        if self.over {
            return Ok(());
        }
        match self.requests.pass(&self.buffer[self.passed..]) {
            Ok(more) => self.passed += more,
            Err(malformed) => {
                self.over = true;
                self.buffer.truncate(self.passed);
                if !self.requests.at_head() {
                    self.fault.set(self.requests.heads(), malformed);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, malformed));
                }
                self.fault.set(self.requests.heads() + 1, malformed);
                self.stands_in = true;
                self.buffer.extend_from_slice(STAND_IN);
                self.passed = self.buffer.len();
            }
        }
        Ok(())
    }

    /// Forgets what was handed on.
    fn compact(&mut self) {
        if self.start == self.buffer.len() {
            // An idle connection keeps no buffer.
            self.buffer = Vec::new();
        } else {
            self.buffer.drain(..self.start);
        }
        self.passed -= self.start;
        self.start = 0;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.start == this.passed {
                this.judge()?;
            }
            if this.start < this.passed {
                let now = (this.passed - this.start).min(out.remaining());
                out.put_slice(&this.buffer[this.start..this.start + now]);
                this.start += now;
                if this.start == this.passed {
                    this.compact();
                }
                return Poll::Ready(Ok(()));
            }
            if this.stands_in {
                return Poll::Pending;
            }
            if this.over {
                return Poll::Ready(Ok(()));
            }
            let mut space = [0; READ];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                // Half a head is nobody's request.
                this.over = true;
                this.buffer.truncate(this.passed);
                return Poll::Ready(Ok(()));
            }
            this.buffer.extend_from_slice(read.filled());
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
