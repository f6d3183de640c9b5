//! The first bytes of a stream: what it is for.
//!
//! One length byte, then a postcard message. A host opens every kind but
//! `Egress`; a guest may open `Egress` and nothing else, which the receiving
//! side checks.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preface {
    /// Host to the guest's init: [`crate::control`].
    Control,
    /// Host to the guest API: HTTP/1.1.
    GuestApi,
    /// Host to a TCP port inside: raw bytes.
    Port(u16),
    /// Guest to the gateway.
    Egress,
}

/// Writes the preface of a stream that was just opened.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), preface: Preface) -> io::Result<()> {
    let body = postcard::to_allocvec(&preface).map_err(io::Error::other)?;
    let length = u8::try_from(body.len()).map_err(io::Error::other)?;
    let mut message = vec![length];
    message.extend_from_slice(&body);
    stream.write_all(&message).await?;
    stream.flush().await
}

/// Reads the preface of a stream that the other side opened.
///
/// The caller bounds the time: a peer may open a stream and say nothing.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Preface> {
    let length = stream.read_u8().await?;
    let mut body = vec![0; usize::from(length)];
    stream.read_exact(&mut body).await?;
    postcard::from_bytes(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_preface_reads_back_as_itself() {
        for preface in [Preface::Control, Preface::GuestApi, Preface::Port(8080), Preface::Egress] {
            let (mut near, mut far) = tokio::io::duplex(64);
            write(&mut near, preface).await.unwrap();
            assert_eq!(read(&mut far).await.unwrap(), preface);
        }
    }

    #[tokio::test]
    async fn an_unknown_kind_is_an_error() {
        let (mut near, mut far) = tokio::io::duplex(64);
        near.write_all(&[1, 200]).await.unwrap();
        assert!(read(&mut far).await.is_err());
    }
}
