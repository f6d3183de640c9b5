//! Starting processes and following them.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;

use super::{Body, ClientError, GuestClient, Transport, full, post, unreadable};
use crate::{
    bytes_json::Base64,
    connect::{self, Decoder, Envelope},
    process::{
        CloseStdinRequest, ConnectRequest, Empty, Event, EventMessage, Input, InputData,
        ListResponse, ProcessInfo, Pty, SERVICE, Selector, SendInputRequest, SendSignalRequest,
        StartRequest, StreamInputEvent, StreamInputRequest, TerminalSize, UpdateRequest,
    },
};

/// Pieces of standard input under way to the guest.
const INPUT_QUEUE: usize = 4;

/// What a process does, as it happens.
#[derive(Debug)]
pub struct ProcessStream {
    pid: u32,
    body: Body,
    decoder: Decoder,
}

impl ProcessStream {
    /// The process's number inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next event; the last one is [`Event::End`].
    ///
    /// # Errors
    /// `DeadlineExceeded` when the deadline ended the process; `Unreachable`
    /// when the stream broke off before the end.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            match self.decoder.decode().map_err(ClientError::Refused)? {
                Some(Envelope::Message(json)) => {
                    let message: EventMessage =
                        serde_json::from_slice(&json).map_err(unreadable)?;
                    return Ok(message.event);
                }
                Some(Envelope::End(Some(error))) => return Err(ClientError::Refused(error)),
                Some(Envelope::End(None)) => {
                    return Err(ClientError::Unreadable(
                        "the stream ended before the process".into(),
                    ));
                }
                None => match self.body.frame().await {
                    Some(Ok(frame)) => {
                        if let Some(data) = frame.data_ref() {
                            self.decoder.push(data);
                        }
                    }
                    Some(Err(error)) => return Err(ClientError::Unreachable(error)),
                    None => return Err(ClientError::Unreachable("the stream broke off".into())),
                },
            }
        }
    }
}

/// Standard input of a process. Closing it, or dropping it, lets the process
/// read end of file.
#[derive(Debug)]
pub struct InputPipe {
    pieces: mpsc::Sender<Bytes>,
}

impl InputPipe {
    /// Sends bytes; waits while the process does not read.
    ///
    /// # Errors
    /// Fails when nobody will read them any more.
    pub async fn write(&self, bytes: Vec<u8>) -> std::io::Result<()> {
        let event = StreamInputEvent::Data(InputData { input: Input::Stdin(Base64(bytes)) });
        let message = connect::message(&StreamInputRequest { event })?;
        self.pieces.send(message).await.map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }
}

impl<T: Transport> GuestClient<T> {
    /// Starts a process as `user`. After `deadline` the guest ends it.
    pub async fn start(
        &self,
        request: &StartRequest,
        user: &str,
        deadline: Option<Duration>,
    ) -> Result<ProcessStream, ClientError> {
        let body = connect::message(request).map_err(unreadable)?;
        if body.len() > connect::MAX_MESSAGE {
            let text = "arguments and environment are too large: 4 MiB at most; use a file";
            let error = connect::Error::new(connect::Code::InvalidArgument, text);
            return Err(ClientError::Refused(error));
        }
        let mut request = post(SERVICE, "Start", user, connect::STREAM);
        if let Some(deadline) = deadline {
            request = request.header("connect-timeout-ms", deadline.as_millis().to_string());
        }
        let response = self.send(request.body(full(body)).map_err(unreadable)?).await?;
        let mut stream =
            ProcessStream { pid: 0, body: response.into_body(), decoder: Decoder::default() };
        match stream.next().await? {
            Event::Start(start) => stream.pid = start.pid,
            other => return Err(unreadable(format!("{other:?} before the start"))),
        }
        Ok(stream)
    }

    /// Opens standard input of a process and the future that carries it there;
    /// the future ends when the pipe is dropped and all of it was taken.
    pub fn input(
        &self,
        process: Selector,
    ) -> (InputPipe, impl Future<Output = Result<(), ClientError>> + use<'_, T>) {
        let (pieces, queue) = mpsc::channel(INPUT_QUEUE);
        let sending = async move {
            let start = StreamInputEvent::Start(ConnectRequest { process: process.clone() });
            let first =
                connect::message(&StreamInputRequest { event: start }).map_err(unreadable)?;
            let pieces =
                futures::stream::unfold((Some(first), queue), |(first, mut queue)| async {
                    let piece = match first {
                        Some(first) => first,
                        None => queue.recv().await?,
                    };
                    Some((Ok(http_body_frame(piece)), (None, queue)))
                });
            let body = StreamBody::new(pieces).boxed_unsync();
            let request = post(SERVICE, "StreamInput", "user", connect::STREAM)
                .body(body)
                .map_err(unreadable)?;
            let response = self.send(request).await?;
            super::collect(response.into_body(), connect::MAX_MESSAGE).await?;
            let close = CloseStdinRequest { process };
            self.call::<_, Empty>(SERVICE, "CloseStdin", "user", &close).await?;
            Ok(())
        };
        (InputPipe { pieces }, sending)
    }

    /// Sends bytes to standard input or to the terminal.
    pub async fn send_input(&self, process: Selector, input: Input) -> Result<(), ClientError> {
        let request = SendInputRequest { process, input };
        self.call::<_, Empty>(SERVICE, "SendInput", "user", &request).await.map(drop)
    }

    /// Sends a signal, by number.
    pub async fn signal(&self, process: Selector, number: i32) -> Result<(), ClientError> {
        let Some(signal) = crate::process::signal_name(number) else {
            return Err(unreadable(format!("signal {number} cannot be sent")));
        };
        let request = SendSignalRequest { process, signal: signal.to_owned() };
        self.call::<_, Empty>(SERVICE, "SendSignal", "user", &request).await.map(drop)
    }

    /// Changes the size of a process's terminal.
    pub async fn resize(&self, process: Selector, size: TerminalSize) -> Result<(), ClientError> {
        let request = UpdateRequest { process, pty: Some(Pty { size }) };
        self.call::<_, Empty>(SERVICE, "Update", "user", &request).await.map(drop)
    }

    /// Lists running processes.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        let list: ListResponse = self.call(SERVICE, "List", "user", &Empty {}).await?;
        Ok(list.processes)
    }
}

fn http_body_frame(piece: Bytes) -> http_body::Frame<Bytes> {
    http_body::Frame::data(piece)
}
