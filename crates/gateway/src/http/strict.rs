//! One reading of HTTP/1.1: what passes here has exactly one.
//!
//! A request that two parsers read differently is how one request hides in
//! another (M kinds). So every byte of a client is looked at in order before
//! any other parser sees it, and what leaves room for a second reading does not
//! pass: nothing is repaired, and the connection ends with it.
//!
//! Refused although some accept it: a bare CR or LF, folded lines, space before
//! a colon, empty lines before a request, two lengths, a length beside chunks,
//! any coding but `chunked`, a header that `Connection` must not name.
//!
//! Deliberately absent: what a request asks for ([`super::target`]) and whether
//! it may.

mod chunks;
mod head;

pub use head::{Head, MAX_HEAD, MAX_HEADERS, head};

use chunks::Chunks;

/// Why bytes do not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// More than [`MAX_HEAD`] bytes, or more than [`MAX_HEADERS`] fields.
    #[error("the head is too large")]
    Large,
    /// A line that ends in a bare LF, or a CR or NUL where none may be.
    #[error("a line does not end in CR LF, or holds a control character")]
    Line,
    /// The first line.
    #[error("the request line is not METHOD SP TARGET SP HTTP/1.1")]
    Request,
    /// A field line: its name, space before the colon, or folded.
    #[error("a header line is malformed")]
    Field,
    /// No host, more than one, or one where none may be.
    #[error("a request has exactly one Host header")]
    Host,
    /// Two lengths, or one that is no number.
    #[error("the Content-Length is not one number")]
    Length,
    /// A coding that is not `chunked`, or one beside a length.
    #[error("Transfer-Encoding is `chunked` alone, and without a Content-Length")]
    Coding,
    /// `Connection` names what is not between two neighbours only.
    #[error("Connection names a header that is not its own")]
    Connection,
    /// Something is expected that is not known.
    #[error("Expect is 100-continue or absent")]
    Expect,
    /// An upgrade with a body.
    #[error("a request that asks for another protocol has no body")]
    Upgrade,
    /// A chunk or what is between chunks.
    #[error("a chunk is malformed")]
    Chunk,
    /// A trailer that is no field line or belongs in the head.
    #[error("a trailer is malformed")]
    Trailer,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// Whatever follows is no HTTP any more, or the connection ends.
    Raw,
}

/// The requests of one connection, as they pass.
#[derive(Debug, Default)]
pub struct Requests {
    state: State,
    /// How much of a head was searched for its end.
    searched: usize,
    heads: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Length(u64),
    Chunked(Chunks),
    Raw,
}

impl Requests {
    /// How many of `bytes`, the next of the connection, pass now. Zero means
    /// that more of them are needed.
    ///
    /// # Errors
    /// Nothing of `bytes` passes, nor anything after them.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut passed = 0;
        while passed < bytes.len() {
            match self.step(&bytes[passed..]) {
                Ok(0) => break,
                Ok(more) => passed += more,
                // What was right before it is answered before it.
                Err(_) if passed > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(passed)
    }

    /// Heads that have passed.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether the next byte begins a request.
    pub fn at_head(&self) -> bool {
        matches!(self.state, State::Head)
    }

    fn step(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match &mut self.state {
            State::Head => self.head(bytes),
            State::Length(left) => {
                let now = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= now as u64;
                if *left == 0 {
                    self.state = State::Head;
                }
                Ok(now)
            }
            State::Chunked(chunks) => {
                let (passed, ended) = chunks.pass(bytes)?;
                if ended {
                    self.state = State::Head;
                }
                Ok(passed)
            }
            State::Raw => Ok(bytes.len()),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let Some(length) = head::end(bytes, self.searched)? else {
            self.searched = bytes.len();
            return Ok(0);
        };
        self.searched = 0;
        let head = head::head(&bytes[..length])?;
        self.heads += 1;
        self.state = match head.body {
            Body::Length(0) => State::Head,
            Body::Length(left) => State::Length(left),
            Body::Chunked => State::Chunked(Chunks::default()),
            Body::Raw => State::Raw,
        };
        Ok(length)
    }
}

#[cfg(test)]
mod tests;
