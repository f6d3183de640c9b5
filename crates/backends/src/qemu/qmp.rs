//! The protocol in which a machine is told what to do.
//!
//! JSON lines over a socket of one client. Commands may be sent ahead: QEMU
//! answers in order, and sending all at once saves a round trip for each.
//!
//! QEMU may have been taken over, so a line is bounded before it is read, events
//! that nobody takes are bounded too, and only fields we look for are believed.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    time::Duration,
};

use bytes::BytesMut;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::UnixStream,
    time::timeout,
};

/// The longest line: the console ring in base64, and room.
const MAX_LINE: usize = 512 * 1024;
/// Events that wait for someone to look. The oldest go first.
const MAX_EVENTS: usize = 64;

/// A connection to one machine.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: UnixStream,
    buffer: BytesMut,
    events: VecDeque<Event>,
    /// Number of the last command that was sent, and of the last that was answered.
    sent: u64,
    answered: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: Map<String, Value>,
}

/// Why a command had no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    /// QEMU said no.
    #[error("QEMU refused {command}: {text}")]
    Refused { command: &'static str, text: String },
    /// QEMU is gone, or says what nobody understands.
    #[error("the connection to QEMU broke")]
    Broken(#[from] io::Error),
    /// No answer in time.
    #[error("QEMU did not answer {command} in time")]
    TimedOut { command: &'static str },
}

/// One line of QEMU.
#[derive(Debug, PartialEq)]
enum Message {
    Greeting,
    Return(Value),
    Error(String),
    Event(Event),
}

impl Event {
    /// A field that is text.
    pub(super) fn text(&self, field: &str) -> &str {
        self.data.get(field).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Qmp {
    /// Connects and sends the command that must be first, without waiting.
    pub(super) async fn connect(path: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(path).await?).await
    }

    /// The same over a connection that exists.
    pub(super) async fn over(stream: UnixStream) -> io::Result<Self> {
        let mut qmp =
            Self { stream, buffer: BytesMut::new(), events: VecDeque::new(), sent: 0, answered: 0 };
        qmp.send("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Sends a command. Its answer must be taken by [`Self::answer`].
    pub(super) async fn send(&mut self, command: &str, arguments: Value) -> io::Result<()> {
        self.sent += 1;
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        self.stream.write_all(line.as_bytes()).await
    }

    /// Sends a command with a descriptor beside it.
    pub(super) async fn send_with(
        &mut self,
        command: &str,
        arguments: Value,
        descriptor: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.sent += 1;
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        let stream = &self.stream;
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let rights = [descriptor];
            control.push(SendAncillaryMessage::ScmRights(&rights));
            let parts = [IoSlice::new(line.as_bytes())];
            let flags = SendFlags::NOSIGNAL;
            Ok(rustix::net::sendmsg(stream.as_fd(), &parts, &mut control, flags)?)
        };
        let written = stream.async_io(Interest::WRITABLE, send).await?;
        // A short line into an empty socket is taken whole or not at all.
        if written == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Waits for the answers to everything that was sent and returns the last.
    pub(super) async fn answer(
        &mut self,
        command: &'static str,
        bound: Duration,
    ) -> Result<Value, QmpError> {
        let all = async {
            let mut last = Value::Null;
            while self.answered < self.sent {
                match self.message().await? {
                    Message::Greeting => {}
                    Message::Event(event) => self.keep(event),
                    Message::Return(value) => {
                        self.answered += 1;
                        last = value;
                    }
                    Message::Error(text) => {
                        self.answered += 1;
                        return Err(QmpError::Refused { command, text });
                    }
                }
            }
            Ok(last)
        };
        timeout(bound, all).await.unwrap_or(Err(QmpError::TimedOut { command }))
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn execute(
        &mut self,
        command: &'static str,
        arguments: Value,
        bound: Duration,
    ) -> Result<Value, QmpError> {
        self.send(command, arguments).await?;
        self.answer(command, bound).await
    }

    /// Waits for the next event. Nothing is lost when it is dropped.
    pub(super) async fn event(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Message::Event(event) = self.message().await? {
                return Ok(event);
            }
        }
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    async fn message(&mut self) -> io::Result<Message> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return decode(&line);
            }
            if self.buffer.len() > MAX_LINE {
                return Err(invalid("a line of QEMU is too long"));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn decode(line: &[u8]) -> io::Result<Message> {
    #[derive(Deserialize)]
    struct Raw {
        #[serde(rename = "QMP")]
        greeting: Option<Value>,
        // An empty object is an answer too, so absence must be told apart.
        #[serde(rename = "return")]
        value: Option<Value>,
        error: Option<RawError>,
        event: Option<String>,
        #[serde(default)]
        data: Map<String, Value>,
    }
    #[derive(Deserialize)]
    struct RawError {
        desc: String,
    }
    let raw: Raw = serde_json::from_slice(line).map_err(|_| invalid("QEMU sent no JSON"))?;
    match raw {
        Raw { event: Some(name), data, .. } => Ok(Message::Event(Event { name, data })),
        Raw { error: Some(RawError { desc }), .. } => Ok(Message::Error(desc)),
        Raw { greeting: Some(_), .. } => Ok(Message::Greeting),
        Raw { value: Some(value), .. } => Ok(Message::Return(value)),
        _ => Err(invalid("QEMU sent a message of an unknown kind")),
    }
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn answers_and_events_are_told_apart() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut qmp = Qmp::over(near).await.unwrap();
        qmp.send("migrate-incoming", json!({ "uri": "fd:15" })).await.unwrap();
        far.write_all(
            b"{\"QMP\": {}}\r\n{\"return\": {}}\r\n\
              {\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\r\n\
              {\"return\": {}}\r\n",
        )
        .await
        .unwrap();
        qmp.answer("migrate-incoming", BOUND).await.unwrap();
        let event = qmp.event().await.unwrap();
        assert_eq!((event.name.as_str(), event.text("status")), ("MIGRATION", "completed"));
    }

    #[tokio::test]
    async fn a_refusal_says_why() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut qmp = Qmp::over(near).await.unwrap();
        far.write_all(b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\n")
            .await
            .unwrap();
        let error = qmp.answer("stop", BOUND).await.unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused stop: no");
    }

    /// G-01: a machine that was taken over cannot fill our memory.
    #[tokio::test]
    async fn an_endless_line_ends_the_connection() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut qmp = Qmp::over(near).await.unwrap();
        let writer =
            tokio::spawn(async move { while far.write_all(&[b' '; 4096]).await.is_ok() {} });
        assert!(qmp.event().await.is_err());
        drop(qmp);
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn a_descriptor_travels_with_its_command() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut qmp = Qmp::over(near).await.unwrap();
        let file = tempfile::tempfile().unwrap();
        qmp.send_with("getfd", json!({ "fdname": "x" }), file.as_fd()).await.unwrap();
        far.readable().await.unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut body = [0; 4096];
        let parts = &mut [std::io::IoSliceMut::new(&mut body)];
        let flags = rustix::net::RecvFlags::empty();
        // The first command arrives alone: a descriptor ends what is read at once.
        rustix::net::recvmsg(far.as_fd(), parts, &mut control, flags).unwrap();
        let mut rights = control.drain().count();
        if rights == 0 {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
            rustix::net::recvmsg(far.as_fd(), parts, &mut control, flags).unwrap();
            rights = control.drain().count();
        }
        assert_eq!(rights, 1);
    }

    proptest! {
        /// G-01
        #[test]
        fn no_line_panics_the_decoder(line in prop::collection::vec(any::<u8>(), 0..200)) {
            // Almost no line is a message; what matters is that it returns.
            drop(decode(&line));
        }
    }
}
