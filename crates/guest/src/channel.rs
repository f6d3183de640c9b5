//! Messages with file descriptors between the guest's own processes.
//!
//! A Unix stream socket: a little-endian length, the number of descriptors,
//! then a postcard message. Descriptors travel with the first byte of their
//! message, so they have arrived when its last byte has. Not a packet socket,
//! because the kernel refuses packets above about half a megabyte and an
//! environment may be larger.
//!
//! Each side bounds what the other can make it hold.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
};

use bytes::{Buf as _, BytesMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::Interest,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// An environment of the size the host may set, and a little.
const MAX_MESSAGE: usize = 24 * 1024 * 1024;
/// The relay gets eight; a process has at most three.
const MAX_DESCRIPTORS: usize = 8;
const HEADER: usize = 5;

/// The sending half.
#[derive(Debug)]
pub(crate) struct Sender(OwnedWriteHalf);

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Receiver {
    half: OwnedReadHalf,
    bytes: BytesMut,
    descriptors: VecDeque<OwnedFd>,
}

/// Takes one end of a socket pair into the runtime.
pub(crate) fn channel(stream: StdStream) -> io::Result<(Sender, Receiver)> {
    stream.set_nonblocking(true)?;
    let (read, write) = UnixStream::from_std(stream)?.into_split();
    let receiver = Receiver { half: read, bytes: BytesMut::new(), descriptors: VecDeque::new() };
    Ok((Sender(write), receiver))
}

impl Sender {
    /// Sends one message. Not safe to cancel: half a message ends the channel.
    pub(crate) async fn send<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
        if body.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other("a message between guest processes is too large"));
        }
        let mut wire = Vec::with_capacity(HEADER + body.len());
        // Both fit, as was checked.
        wire.extend_from_slice(&(body.len() as u32).to_le_bytes());
        wire.push(descriptors.len() as u8);
        wire.extend_from_slice(&body);

        let stream: &UnixStream = self.0.as_ref();
        let first = stream.async_io(Interest::WRITABLE, || send(stream, &wire, descriptors));
        let mut sent = first.await?;
        while sent < wire.len() {
            let rest = &wire[sent..];
            sent += stream.async_io(Interest::WRITABLE, || send(stream, rest, &[])).await?;
        }
        Ok(())
    }
}

impl Receiver {
    /// Receives one message, or `None` when the other side is gone.
    pub(crate) async fn receive<T: DeserializeOwned>(
        &mut self,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Takes a whole message out of what has arrived.
    fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((header, rest)) = self.bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [a, b, c, d, n_descriptors] = *header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let n_descriptors = usize::from(n_descriptors);
        if length > MAX_MESSAGE || n_descriptors > MAX_DESCRIPTORS {
            return Err(invalid("a message between guest processes is too large"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        if self.descriptors.len() < n_descriptors {
            return Err(invalid("descriptors are missing"));
        }
        let message = postcard::from_bytes(body).map_err(|error| invalid(&error.to_string()))?;
        self.bytes.advance(HEADER + length);
        Ok(Some((message, self.descriptors.drain(..n_descriptors).collect())))
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 8 * 1024];
        let stream: &UnixStream = self.half.as_ref();
        let descriptors = &mut self.descriptors;
        let n = stream
            .async_io(Interest::READABLE, || receive(stream, &mut buffer, descriptors))
            .await?;
        self.bytes.extend_from_slice(&buffer[..n]);
        Ok(n)
    }
}

fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    Ok(sent?)
}

fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(buffer)];
    let received = recvmsg(stream.as_fd(), &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > 64 {
        return Err(invalid("too many descriptors"));
    }
    Ok(received.bytes)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[tokio::test]
    async fn a_large_message_arrives_with_its_descriptors() {
        let (near, far) = StdStream::pair().unwrap();
        let (mut sender, _keep) = channel(near).unwrap();
        let (_keep_too, mut receiver) = channel(far).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let sending = async {
            sender.send(&"first", &[]).await.unwrap();
            sender.send(&"x".repeat(2_000_000), &[write.as_fd()]).await.unwrap();
        };
        let receiving = async {
            let (first, none) = receiver.receive::<String>().await.unwrap().unwrap();
            let second = receiver.receive::<String>().await.unwrap().unwrap();
            (first, none, second)
        };
        let ((), (first, none, (second, mut descriptors))) = tokio::join!(sending, receiving);
        assert_eq!((first.as_str(), none.len(), second.len()), ("first", 0, 2_000_000));
        drop(write);
        std::fs::File::from(descriptors.pop().unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    /// G-01: an announced length is refused, not allocated.
    #[tokio::test]
    async fn an_oversized_announcement_ends_the_channel() {
        let (mut near, far) = StdStream::pair().unwrap();
        let (_keep, mut receiver) = channel(far).unwrap();
        near.write_all(&[0xff, 0xff, 0xff, 0xff, 0]).unwrap();
        assert!(receiver.receive::<String>().await.is_err());
    }

    #[tokio::test]
    async fn the_end_of_the_other_side_is_not_an_error() {
        let (near, far) = StdStream::pair().unwrap();
        let (_keep, mut receiver) = channel(far).unwrap();
        drop(near);
        assert!(receiver.receive::<String>().await.unwrap().is_none());
    }
}
