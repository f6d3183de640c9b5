//! What the guest's relay says when it opens an egress stream.
//!
//! After the preface comes one [`Opening`], written like a control message: a
//! little-endian `u32` length and a postcard body, here of at most
//! [`MAX_OPENING`] bytes. The host does not read it; the gateway does, and
//! believes nothing of it but as a claim: which sandbox speaks is known from the
//! link, and a lie about the account or the name gains nothing that the sandbox
//! could not ask for openly.
//!
//! What follows depends on the front:
//!
//! | Front | then |
//! |---|---|
//! | `Named`, `Proxy` | HTTP, as the client in the sandbox wrote it |
//! | `Captured` | one [`Verdict`] from the gateway, then raw bytes both ways |
//! | `Dns` | messages, each behind a big-endian `u16` length, in turn |
//! | `Udp` | one [`Verdict`], then datagrams behind a big-endian `u16` length |

use std::{io, net::SocketAddr};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest opening and the largest verdict.
pub const MAX_OPENING: u32 = 1024;

/// Who asks, and where it came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// The account of the client in the sandbox; absent if it could not be found.
    pub uid: Option<u32>,
    /// Where the client came in.
    pub front: Front,
}

/// The ways in at the relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Front {
    /// A named path on port 8788.
    Named,
    /// The forward proxy on port 8789.
    Proxy,
    /// A TCP connection to somewhere else that was captured.
    Captured(Destination),
    /// The resolver.
    Dns,
    /// Datagrams to one address, in mode `open` only.
    Udp(SocketAddr),
}

/// Where a captured connection was going.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    /// To an address that the relay had given out for this name.
    Name {
        /// As it was asked for.
        name: String,
        /// The port.
        port: u16,
    },
    /// To an address as such.
    Address(SocketAddr),
}

/// What the gateway says to a captured connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Connected; bytes follow.
    Open,
    /// No, with the stable code; the stream ends.
    Refused {
        /// Such as `destination_blocked`.
        code: String,
    },
}

/// Writes an opening or a verdict.
pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_OPENING);
    let length = length.ok_or_else(|| io::Error::other("egress message too large"))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Reads an opening or a verdict. The caller bounds the time.
pub async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = stream.read_u32_le().await?;
    if length > MAX_OPENING {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "egress message too large"));
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await?;
    postcard::from_bytes(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_opening_reads_back_as_itself() {
        let named = Destination::Name { name: "a.test".into(), port: 443 };
        let address: SocketAddr = "[::1]:53".parse().unwrap();
        for front in [
            Front::Named,
            Front::Proxy,
            Front::Captured(named),
            Front::Captured(Destination::Address(address)),
            Front::Dns,
            Front::Udp(address),
        ] {
            let opening = Opening { uid: Some(1000), front };
            let (mut near, mut far) = tokio::io::duplex(256);
            write(&mut near, &opening).await.unwrap();
            assert_eq!(read::<Opening>(&mut far).await.unwrap(), opening);
        }
    }

    /// G-01: an announced length is not believed.
    #[tokio::test]
    async fn a_large_opening_is_refused_unread() {
        let (mut near, mut far) = tokio::io::duplex(256);
        near.write_all(&(MAX_OPENING + 1).to_le_bytes()).await.unwrap();
        assert!(read::<Opening>(&mut far).await.is_err());
    }
}
