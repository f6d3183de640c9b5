//! One session at a time over a byte pipe, for both sides.
//!
//! The host begins a session with [`Transport::greet`], the guest with
//! [`Transport::accept`]; then the transport reads and writes as the byte
//! stream of that session, on which [`crate::mux`] runs.
//!
//! What must hold:
//!
//! - Bytes of an earlier session never reach a later one: a data frame whose
//!   epoch is not the session's is dropped.
//! - A frame that was begun is finished before anything else is written, even
//!   across sessions, so that the other side never loses its place because of
//!   us. Losing a place is only possible when the pipe itself lost bytes.
//! - A guest that hears a new hello ends the session it is in: reading fails
//!   with `ConnectionReset`, and `accept` answers the hello that was heard.
//! - A host treats any byte that is not a frame of its session as the end of
//!   the session. It never waits inside this module without the caller's bound.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::{
    frame::{HEADER, Header, Kind, MAGIC, MAX_PAYLOAD},
    hello::{Hello, HelloAck, MAX_HELLO, VERSION},
};

/// What a host reads at most while it waits for the guest's answer: whatever
/// was in flight in an earlier session. More is a guest that floods.
const MAX_DISCARD: usize = 64 * 1024 * 1024;

/// Where the reader is.
#[derive(Clone, Copy, Debug)]
enum Position {
    /// The next bytes should be a header.
    Boundary,
    /// So many bytes of a data frame of the session are still to come.
    Payload(usize),
    /// So many bytes of a frame that nobody wants are still to come.
    Skip(usize),
}

/// What a host knows of a pipe before it greets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipe {
    /// The guest is between two frames: nobody wrote since its template was
    /// captured in silence.
    Fresh,
    /// An earlier host may have left a frame half-sent.
    Used,
}

/// Frames over a byte pipe.
#[derive(Debug)]
pub struct Transport<IO> {
    io: IO,
    /// The session's epoch; none before the first hello.
    epoch: Option<u32>,
    /// Which end we are decides what an unexpected frame means.
    hears: Hears,
    input: BytesMut,
    position: Position,
    /// Frames not yet written, the first perhaps in part.
    output: BytesMut,
    /// A hello that ended the last session and waits to be answered.
    heard: Option<Hello>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hears {
    /// A guest: hellos begin sessions, garbage is skipped.
    Hellos,
    /// A host: answers begin sessions, garbage ends them.
    Answers,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Transport<IO> {
    /// Takes a pipe on which no session has begun.
    pub fn new(io: IO) -> Self {
        Self {
            io,
            epoch: None,
            hears: Hears::Hellos,
            input: BytesMut::new(),
            position: Position::Boundary,
            output: BytesMut::new(),
            heard: None,
        }
    }

    /// Waits for a host, and answers it. For the guest.
    ///
    /// Anything that is not a hello of our version is skipped: it belongs to a
    /// host that is gone.
    pub async fn accept(&mut self, ack: &HelloAck) -> io::Result<Hello> {
        self.hears = Hears::Hellos;
        self.epoch = None;
        let hello = loop {
            if let Some(hello) = self.heard.take() {
                break hello;
            }
            // Without an epoch no payload is delivered: this returns on a hello.
            let mut nothing = [0; 1];
            match tokio::io::AsyncReadExt::read(self, &mut nothing).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        self.epoch = Some(hello.epoch);
        let body = postcard::to_allocvec(ack).map_err(io::Error::other)?;
        self.queue(Kind::HelloAck, hello.epoch, &body);
        self.flush().await?;
        Ok(hello)
    }

    /// Begins a session. For the host, which bounds the time.
    ///
    /// # Errors
    /// `InvalidData` when the guest speaks another version or floods.
    pub async fn greet(&mut self, hello: &Hello, pipe: Pipe) -> io::Result<HelloAck> {
        self.hears = Hears::Answers;
        self.epoch = None;
        let body = postcard::to_allocvec(hello).map_err(io::Error::other)?;
        if pipe == Pipe::Used {
            // Ends whatever frame an earlier host left half-sent.
            self.output.extend_from_slice(&[0; MAX_PAYLOAD]);
        }
        self.queue(Kind::Hello, hello.epoch, &body);
        self.flush().await?;
        let body = self.find_answer(hello.epoch).await?;
        let ack: HelloAck = postcard::from_bytes(&body)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if ack.version != VERSION {
            let text = format!("the guest speaks version {}, this host {VERSION}", ack.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.epoch = Some(hello.epoch);
        self.position = Position::Boundary;
        Ok(ack)
    }

    /// Reads until the answer of `epoch`, at any offset: the bytes before it
    /// may begin in the middle of a frame.
    async fn find_answer(&mut self, epoch: u32) -> io::Result<Vec<u8>> {
        let mut discarded = 0;
        loop {
            while self.input.len() >= HEADER {
                let header = Header::decode(first_header(&self.input)).filter(|header| {
                    header.kind == Kind::HelloAck
                        && header.epoch == epoch
                        && header.length <= MAX_HELLO
                });
                let Some(header) = header else {
                    discarded += self.skip_to_candidate();
                    continue;
                };
                if self.input.len() < HEADER + header.length {
                    break;
                }
                self.input.advance(HEADER);
                return Ok(self.input.split_to(header.length).to_vec());
            }
            if discarded > MAX_DISCARD {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the guest floods the link",
                ));
            }
            if tokio::io::AsyncReadExt::read_buf(&mut self.io, &mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl<IO> Transport<IO> {
    /// Adds a frame to the output. `body` is at most [`MAX_PAYLOAD`].
    fn queue(&mut self, kind: Kind, epoch: u32, body: &[u8]) {
        let header = Header { kind, epoch, length: body.len() };
        self.output.extend_from_slice(&header.encode());
        self.output.extend_from_slice(body);
    }

    /// Takes what the input holds up to the next payload byte of the session.
    fn advance(&mut self) -> io::Result<Found> {
        loop {
            match self.position {
                Position::Payload(0) | Position::Skip(0) => self.position = Position::Boundary,
                Position::Payload(_) if self.input.is_empty() => return Ok(Found::NeedMore),
                Position::Payload(left) => return Ok(Found::Payload(left.min(self.input.len()))),
                Position::Skip(left) => {
                    let skipped = left.min(self.input.len());
                    self.input.advance(skipped);
                    self.position = Position::Skip(left - skipped);
                    if left > skipped {
                        return Ok(Found::NeedMore);
                    }
                }
                Position::Boundary => {
                    if self.input.len() < HEADER {
                        return Ok(Found::NeedMore);
                    }
                    match Header::decode(first_header(&self.input)) {
                        Some(header)
                            if header.kind == Kind::Hello && self.hears == Hears::Hellos =>
                        {
                            if self.input.len() < HEADER + header.length.min(MAX_HELLO) {
                                return Ok(Found::NeedMore);
                            }
                            if let Some(hello) = self.take_hello(header) {
                                self.heard = Some(hello);
                                self.epoch = None;
                                return Err(io::ErrorKind::ConnectionReset.into());
                            }
                        }
                        Some(header) => {
                            self.input.advance(HEADER);
                            let ours =
                                header.kind == Kind::Data && self.epoch == Some(header.epoch);
                            self.position = if ours {
                                Position::Payload(header.length)
                            } else {
                                Position::Skip(header.length)
                            };
                        }
                        None if self.hears == Hears::Answers => {
                            let text = "the guest sent bytes that are not a frame";
                            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                        }
                        None => {
                            self.skip_to_candidate();
                        }
                    }
                }
            }
        }
    }

    /// Skips to where the next header could begin. Returns how many bytes.
    fn skip_to_candidate(&mut self) -> usize {
        let rest = self.input.iter().skip(1).position(|byte| *byte == MAGIC[0]);
        let skipped = rest.map_or(self.input.len(), |at| at + 1);
        self.input.advance(skipped);
        skipped
    }

    /// Consumes the hello at the front of the input, if it is one of ours.
    fn take_hello(&mut self, header: Header) -> Option<Hello> {
        self.input.advance(HEADER);
        if header.length > MAX_HELLO {
            self.position = Position::Skip(header.length);
            return None;
        }
        let body = self.input.split_to(header.length);
        let hello: Hello = postcard::from_bytes(&body).ok()?;
        (hello.version == VERSION && hello.epoch == header.epoch).then_some(hello)
    }
}

enum Found {
    /// So many bytes at the front of the input are payload.
    Payload(usize),
    /// Nothing can be said before more arrives.
    NeedMore,
}

fn first_header(input: &BytesMut) -> &[u8; HEADER] {
    input.first_chunk().expect("the caller saw at least one header of input")
}

impl<IO: AsyncRead + Unpin> AsyncRead for Transport<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match this.advance()? {
                Found::Payload(available) => {
                    let taken = available.min(buf.remaining());
                    buf.put_slice(&this.input[..taken]);
                    this.input.advance(taken);
                    if let Position::Payload(left) = this.position {
                        this.position = Position::Payload(left - taken);
                    }
                    return Poll::Ready(Ok(()));
                }
                Found::NeedMore => {
                    let mut chunk = [0; 8192];
                    let mut read = ReadBuf::new(&mut chunk);
                    ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
                    if read.filled().is_empty() {
                        // The pipe is gone; inside a frame or not makes no difference.
                        return Poll::Ready(Ok(()));
                    }
                    this.input.extend_from_slice(read.filled());
                }
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> Transport<IO> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.output))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Transport<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        // One frame in hand at a time: this is where back-pressure begins.
        ready!(this.poll_drain(cx))?;
        let Some(epoch) = this.epoch else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let taken = buf.len().min(MAX_PAYLOAD);
        this.queue(Kind::Data, epoch, &buf[..taken]);
        // Starts writing at once; what does not fit now goes with the next call.
        if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A session ends; the pipe does not.
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests;
