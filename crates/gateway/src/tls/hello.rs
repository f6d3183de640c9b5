//! What a client says first in TLS: which name it wants.
//!
//! The bytes are kept as they came, so that a connection can be spliced
//! untouched afterwards. Parsing is rustls'; a hello may come in pieces of any
//! size and is bounded as a whole. What rustls does not tell, whether the name
//! is hidden (ECH), is read from the same bytes.

mod walk;

use std::io;

use domain::host::Host;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The largest hello, records included.
pub const MAX_HELLO: usize = 32 * 1024;
/// The first byte of a TLS connection.
pub const HANDSHAKE: u8 = 0x16;

/// Refuses a hello: a fatal alert, `unrecognized_name`.
pub const UNRECOGNIZED_NAME: &[u8] = &[0x15, 3, 3, 0, 2, 2, 112];

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name, in canonical form.
    pub name: Option<Host>,
    /// Whether the real hello is encrypted in this one, or might be.
    pub hidden: bool,
    /// Whether HTTP/2 is offered.
    pub h2: bool,
}

/// Why there is no hello.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The connection ended or broke.
    #[error("the connection ended before its TLS hello")]
    Io(#[from] io::Error),
    /// Not TLS, or not one that may be.
    #[error("the TLS hello is malformed")]
    Malformed,
    /// It does not end.
    #[error("the TLS hello is too large")]
    Large,
}

/// Reads the hello of `stream`, of which `bytes` was read already. Everything
/// read is in `bytes` afterwards, however it went. The caller bounds the time.
pub async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> Result<Hello, HelloError> {
    let mut parser = Parser::default();
    loop {
        if let Some(hello) = parser.parse(bytes)? {
            return Ok(hello);
        }
        let mut space = [0; 4096];
        let read = stream.read(&mut space).await?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        bytes.extend_from_slice(&space[..read]);
    }
}

/// Reads a hello that comes in pieces.
#[derive(Default)]
pub struct Parser {
    acceptor: Acceptor,
    fed: usize,
}

impl Parser {
    /// Reads on in `bytes`, which begin with the connection.
    ///
    /// # Errors
    /// There will never be a hello.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Option<Hello>, HelloError> {
        while self.fed < bytes.len() {
            let mut rest = &bytes[self.fed..];
            let before = rest.len();
            self.acceptor.read_tls(&mut rest).map_err(|_| HelloError::Malformed)?;
            self.fed += before - rest.len();
            match self.acceptor.accept() {
                Err(_) => return Err(HelloError::Malformed),
                Ok(Some(accepted)) => {
                    let seen = walk::walk(bytes).ok_or(HelloError::Malformed)?;
                    let hello = accepted.client_hello();
                    let name = hello.server_name().map(str::parse);
                    let name = name.transpose().map_err(|_| HelloError::Malformed)?;
                    // A name that one reader sees and another does not.
                    if seen.names != name.is_some() {
                        return Err(HelloError::Malformed);
                    }
                    let h2 = hello.alpn().is_some_and(|mut all| all.any(|one| one == b"h2"));
                    return Ok(Some(Hello { name, hidden: seen.hidden, h2 }));
                }
                Ok(None) => {}
            }
        }
        if bytes.len() > MAX_HELLO { Err(HelloError::Large) } else { Ok(None) }
    }
}

impl std::fmt::Debug for Parser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parser").field("fed", &self.fed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
