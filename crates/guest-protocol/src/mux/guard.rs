//! The bytes of a peer, checked and made cheap before yamux sees them.
//!
//! A frame that no honest peer sends ends the session with `InvalidData`.
//! Small frames are joined: what the peer cut into single bytes reaches yamux
//! in few pieces, and while nobody reads a stream in pieces of 16 KiB. And
//! small frames come at a bounded rate: a peer that sends nothing else is read
//! more slowly, which costs its own session and nothing else.
//!
//! Absent here is the window: yamux counts that itself.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::ledger::Ledger;

const HEADER: usize = 12;
/// A frame with less payload than this is small.
pub(super) const SMALL: usize = 256;
/// The most payload of a frame: the window that every stream begins with.
const MAX_DATA: usize = 256 * 1024;
/// So many small frames take at least [`TICK`].
const PER_TICK: u32 = 2048;
const TICK: Duration = Duration::from_millis(100);

const DATA: u8 = 0;
const WINDOW: u8 = 1;
const PING: u8 = 2;
const GO_AWAY: u8 = 3;

const SYN: u16 = 1;
const ACK: u16 = 2;
const FIN: u16 = 4;
const RST: u16 = 8;

/// A byte pipe of which only checked bytes are read.
#[derive(Debug)]
pub(super) struct Guard<IO> {
    io: IO,
    ledger: Ledger,
    /// As it came; at most one read and an unfinished frame.
    input: BytesMut,
    /// What yamux may see.
    output: BytesMut,
    /// Payload of a large frame that is still to be passed on.
    passing: usize,
    small: u32,
    tick: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    kind: u8,
    flags: u16,
    stream: u32,
    length: u32,
}

impl Header {
    /// Reads and judges a header.
    fn read(bytes: &[u8; HEADER]) -> io::Result<Self> {
        let [version, kind, f, g, a, b, c, d, l @ ..] = *bytes;
        let flags = u16::from_be_bytes([f, g]);
        let header = Self {
            kind,
            flags,
            stream: u32::from_be_bytes([a, b, c, d]),
            length: u32::from_be_bytes(l),
        };
        let known = version == 0 && kind <= GO_AWAY && flags & !(SYN | ACK | FIN | RST) == 0;
        // Stream 0 is the session itself.
        let about_a_stream = matches!(kind, DATA | WINDOW);
        let sane = known
            && about_a_stream == (header.stream != 0)
            && (kind != DATA || header.length as usize <= MAX_DATA)
            && (kind != PING || flags == SYN || flags == ACK);
        if sane {
            return Ok(header);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the peer sent a frame that is not one"))
    }

    fn write(self, output: &mut BytesMut) {
        output.extend_from_slice(&[0, self.kind]);
        output.extend_from_slice(&self.flags.to_be_bytes());
        output.extend_from_slice(&self.stream.to_be_bytes());
        output.extend_from_slice(&self.length.to_be_bytes());
    }

    fn has(self, flags: u16) -> bool {
        self.flags & flags != 0
    }
}

impl<IO> Guard<IO> {
    pub(super) fn new(io: IO, ledger: Ledger) -> Self {
        Self {
            io,
            ledger,
            input: BytesMut::new(),
            output: BytesMut::new(),
            passing: 0,
            small: 0,
            tick: Instant::now(),
            pause: None,
        }
    }

    /// Turns what has come into what yamux may see.
    fn sift(&mut self) -> io::Result<()> {
        while !self.input.is_empty() {
            if self.passing > 0 {
                let n = self.passing.min(self.input.len());
                self.output.extend_from_slice(&self.input[..n]);
                self.input.advance(n);
                self.passing -= n;
                continue;
            }
            let Some(bytes) = self.input.first_chunk::<HEADER>() else { break };
            let header = Header::read(bytes)?;
            let payload = if header.kind == DATA { header.length as usize } else { 0 };
            // A small frame is judged when it is whole.
            if payload < SMALL && self.input.len() < HEADER + payload {
                break;
            }
            self.input.advance(HEADER);
            self.frame(header, payload)?;
        }
        // Never into the middle of a large frame.
        while self.passing == 0
            && let Some(stream) = self.ledger.next_due()
        {
            self.hand_over(stream);
        }
        Ok(())
    }

    fn frame(&mut self, header: Header, payload: usize) -> io::Result<()> {
        if payload < SMALL {
            self.small += 1;
        }
        if header.kind == DATA && payload < SMALL && !header.has(SYN | FIN | RST) {
            if header.has(ACK) {
                // The same news without a payload.
                Header { kind: WINDOW, length: 0, ..header }.write(&mut self.output);
            }
            self.ledger.join(header.stream, &self.input[..payload]);
            self.input.advance(payload);
            return Ok(());
        }
        if header.has(SYN) && header.kind != PING {
            self.ledger.announced(header.stream)?;
        }
        if header.kind == DATA || header.has(FIN | RST) {
            self.hand_over(header.stream);
        }
        if header.has(FIN) && !header.has(RST) {
            self.ledger.finished(header.stream);
        }
        header.write(&mut self.output);
        self.passing = payload;
        Ok(())
    }

    fn hand_over(&mut self, stream: u32) {
        if let Some(joined) = self.ledger.take(stream) {
            // At most one read more than is enough for a frame.
            let length = joined.len() as u32;
            Header { kind: DATA, flags: 0, stream, length }.write(&mut self.output);
            self.output.extend_from_slice(&joined);
        }
    }

    /// Whether the peer's small frames have used up their time.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.small >= PER_TICK {
            self.small = 0;
            let until = self.tick + TICK;
            self.pause = (Instant::now() < until).then(|| Box::pin(sleep_until(until)));
            self.tick = Instant::now().max(until);
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Guard<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guard = self.get_mut();
        loop {
            guard.sift()?;
            if !guard.output.is_empty() {
                let n = guard.output.len().min(buffer.remaining());
                buffer.put_slice(&guard.output.split_to(n));
                return Poll::Ready(Ok(()));
            }
            if guard.ledger.wait(cx.waker()) && guard.passing == 0 {
                continue;
            }
            ready!(guard.poll_pace(cx));
            let mut chunk = [0; 8192];
            let mut read = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut guard.io).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            guard.input.extend_from_slice(read.filled());
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Guard<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
