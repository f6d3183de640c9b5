//! What the host asks of the guest's init.
//!
//! A control stream carries requests and answers in turn: a little-endian `u32`
//! length, then a postcard message of at most [`MAX_MESSAGE`] bytes. Only the
//! host opens one, so nothing that runs in the sandbox can speak here.

use std::io;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::volumes;

/// The largest message either side accepts. An environment is the largest part
/// of one: 256 variables of 64 KiB.
pub const MAX_MESSAGE: u32 = 20 * 1024 * 1024;

/// A request of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Proves that the guest is alive and the mux moves.
    Ping {
        /// Comes back in the answer.
        nonce: u64,
    },
    /// Runs each command to its end as the ordinary user, output discarded, to
    /// bring what it reads into memory before a template is captured.
    Warm {
        /// Programs with their arguments.
        commands: Vec<Vec<String>>,
    },
    /// Makes this machine one particular sandbox. Sent once after a start and
    /// again after each resume, before any process of a user exists.
    Identify(Box<Identity>),
    /// Tells a machine that stood still what it missed: the time, and fresh
    /// randomness. It stays the sandbox that it was. Sent after each resume,
    /// before anyone may reach its processes.
    Wake {
        /// Nanoseconds since the Unix epoch, now.
        unix_nanos: u64,
        /// Fresh entropy, as in [`Identity::entropy`].
        entropy: [u8; 32],
    },
    /// Makes a machine that was captured while it ran another sandbox: name,
    /// machine id, time, randomness. Its processes, its variables and its
    /// accounts stay.
    Become(Box<Newcomer>),
    /// Does something with a volume.
    Volume(volumes::Request),
    /// Says what the network inside looks like from now on. Before the first one
    /// it is that of [`Mode::Off`], and after a failed one it is again.
    Network(Box<Network>),
}

/// The network that programs inside see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// How much of it there is. The gateway decides what it leads to.
    pub mode: Mode,
    /// Variables that point programs at the relay, such as `HTTPS_PROXY`, for
    /// processes started from now on; the sandbox's own of the same name win.
    /// They take the place of those of an earlier request.
    pub environment: Vec<(String, String)>,
}

/// What of the way out exists inside. Each has what the one before has.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Mode {
    /// Nothing; the relay's ports say so.
    #[default]
    Off,
    /// Named paths on port 8788.
    Brokered,
    /// And the proxy on port 8789, capture of TCP, and a resolver.
    Restricted,
    /// The same inside.
    Mediated,
    /// And UDP.
    Open,
}

/// Who a copy of a running machine is from now on.
#[derive(Clone, Serialize, Deserialize)]
pub struct Newcomer {
    /// The sandbox id as text.
    pub sandbox: String,
    /// The new host name.
    pub hostname: String,
    /// The new `/etc/machine-id`.
    pub machine_id: [u8; 16],
    /// Nanoseconds since the Unix epoch, now.
    pub unix_nanos: u64,
    /// Fresh entropy, as in [`Identity::entropy`].
    pub entropy: [u8; 32],
    /// Variables that are added for processes started from now on.
    pub environment: Vec<(String, String)>,
}

impl std::fmt::Debug for Newcomer {
    /// Leaves out entropy and every value of the environment.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Newcomer").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

/// What makes one clone of a template different from another.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// The sandbox id as text, for people who look inside.
    pub sandbox: String,
    /// The new host name.
    pub hostname: String,
    /// The new `/etc/machine-id`.
    pub machine_id: [u8; 16],
    /// Nanoseconds since the Unix epoch, now.
    pub unix_nanos: u64,
    /// Fresh entropy: credited to the kernel's pool, then the pool reseeds.
    pub entropy: [u8; 32],
    /// Variables of every process started from now on.
    pub environment: Vec<(String, String)>,
    /// Accounts under which processes may be started.
    pub accounts: Vec<u32>,
}

impl std::fmt::Debug for Identity {
    /// Leaves out entropy and every value of the environment.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        f.debug_struct("Identity")
            .field("sandbox", &self.sandbox)
            .field("hostname", &self.hostname)
            .field("environment", &names)
            .field("accounts", &self.accounts)
            .finish_non_exhaustive()
    }
}

/// An answer of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// To [`Request::Ping`].
    Pong {
        /// As it was sent.
        nonce: u64,
    },
    /// To every other request.
    Done,
    /// To an unmount: something in the sandbox still uses the volume.
    Busy,
    /// The request could not be carried out; the machine must not be used.
    Failed {
        /// What went wrong, for an operator.
        message: String,
    },
}

/// Writes one message.
pub async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_MESSAGE);
    let length = length.ok_or_else(|| io::Error::other("control message too large"))?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(&body).await?;
    stream.flush().await
}

/// Reads one message.
pub async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = stream.read_u32_le().await?;
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "control message too large"));
    }
    // Grows with what arrives, not with what was announced.
    let mut body = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut body).await?;
    if body.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_reads_back_as_itself() {
        let (mut near, mut far) = tokio::io::duplex(1024);
        write(&mut near, &Response::Pong { nonce: 7 }).await.unwrap();
        assert_eq!(read::<Response>(&mut far).await.unwrap(), Response::Pong { nonce: 7 });
    }

    /// G-01: an announced length is not believed.
    #[tokio::test]
    async fn an_announced_length_allocates_nothing() {
        let (mut near, mut far) = tokio::io::duplex(1024);
        near.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert!(read::<Response>(&mut far).await.is_err());
        let (mut near, mut far) = tokio::io::duplex(1024);
        near.write_all(&MAX_MESSAGE.to_le_bytes()).await.unwrap();
        drop(near);
        assert!(read::<Response>(&mut far).await.is_err());
    }

    /// S29: neither the environment nor the seed can reach a log by accident.
    #[test]
    fn an_identity_prints_no_value() {
        let identity = Identity {
            sandbox: "sbx".into(),
            hostname: "h".into(),
            machine_id: [0; 16],
            unix_nanos: 0,
            entropy: [0x5a; 32],
            environment: vec![("KEY".into(), "hunter2".into())],
            accounts: vec![1000],
        };
        let shown = format!("{identity:?}");
        assert!(shown.contains("KEY") && !shown.contains("hunter2") && !shown.contains("90"));
    }
}
