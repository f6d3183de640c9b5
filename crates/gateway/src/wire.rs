//! What the server and the gateway say to each other.
//!
//! Each stream that is handed over begins with a [`Hand`], which only the server
//! can write: the socket lies in a folder that only it can enter. Everything
//! else goes over one control channel, as messages behind a little-endian `u32`
//! length. When that channel ends, so does the gateway.

use std::io;

use domain::id::SandboxId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{journal::Record, rules::Rules};

/// The largest message of the control channel: rules with every list full.
pub const MAX_MESSAGE: u32 = 1024 * 1024;
/// The largest preface.
const MAX_HAND: u8 = 128;

/// Whose stream this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hand {
    /// The sandbox, by its link.
    pub sandbox: SandboxId,
    /// The least generation of its rules by which the stream may be judged.
    pub generation: u64,
}

/// From the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// Rules of a sandbox, new or in the place of older ones.
    Rules(Box<Rules>),
    /// A sandbox is no more, or is not known.
    Forget(SandboxId),
    /// What should the sandbox trust?
    AskTrust(SandboxId),
    /// Are you well?
    Ping(u64),
}

/// From the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToServer {
    /// It is ready for streams.
    Ready,
    /// The rules of this sandbox are needed, of this generation or later.
    AskRules(SandboxId, u64),
    /// A decision, for the journal.
    Record(Box<Record>),
    /// The authority of a sandbox, as PEM.
    Trust(SandboxId, String),
    /// It is.
    Pong(u64),
}

/// Writes the preface of a stream.
pub async fn write_hand(stream: &mut (impl AsyncWrite + Unpin), hand: &Hand) -> io::Result<()> {
    let body = postcard::to_allocvec(hand).map_err(io::Error::other)?;
    let length = u8::try_from(body.len()).ok().filter(|length| *length <= MAX_HAND);
    let mut bytes = vec![length.ok_or_else(|| io::Error::other("preface too large"))?];
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes).await
}

/// Reads the preface of a stream. The caller bounds the time.
pub async fn read_hand(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Hand> {
    let length = stream.read_u8().await?;
    if length > MAX_HAND {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; usize::from(length)];
    stream.read_exact(&mut body).await?;
    postcard::from_bytes(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a control message.
pub async fn write<T: Serialize>(
    channel: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_MESSAGE);
    let length = length.ok_or_else(|| io::Error::other("control message too large"))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    channel.write_all(&bytes).await
}

/// Reads a control message.
pub async fn read<T: DeserializeOwned>(channel: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = channel.read_u32_le().await?;
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "control message too large"));
    }
    let mut body = Vec::new();
    channel.take(length.into()).read_to_end(&mut body).await?;
    if body.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_reads_back() {
        let sandbox = SandboxId::from_random([1; 16]);
        let (mut near, mut far) = tokio::io::duplex(4096);
        let hand = Hand { sandbox: sandbox.clone(), generation: u64::MAX };
        write_hand(&mut near, &hand).await.unwrap();
        assert_eq!(read_hand(&mut far).await.unwrap(), hand);
        let rules = ToGateway::Rules(Box::new(Rules::off(sandbox, 7)));
        write(&mut near, &rules).await.unwrap();
        assert_eq!(read::<ToGateway>(&mut far).await.unwrap(), rules);
    }

    #[tokio::test]
    async fn an_announced_length_allocates_nothing() {
        let (mut near, mut far) = tokio::io::duplex(4096);
        near.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert!(read::<ToServer>(&mut far).await.is_err());
    }
}
