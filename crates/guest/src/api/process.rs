//! `process.Process`: starting processes, following them, talking to them.

use std::{io, rc::Rc};

use bytes::Bytes;
use guest_protocol::{
    connect::{self, Code, Decoder, Envelope, Error},
    process::{
        CloseStdinRequest, ConnectRequest, Empty, Event, Input, ListResponse, Selector,
        SendInputRequest, SendSignalRequest, StartRequest, StreamInputEvent, StreamInputRequest,
        UpdateRequest, signal_number,
    },
};
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, Request, Response, StatusCode, body::Incoming};
use tokio::sync::mpsc;

use super::{Api, pump, streams::cells, users};
use crate::{
    http::{
        body::{self, Body},
        events::{self, Manner},
        rpc,
    },
    messages::{Start, ToInit, Wiring},
};

/// Starts a process; the answer follows it to its end.
pub(crate) async fn start(api: &Rc<Api>, request: Request<Incoming>) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let prepared = async {
        let uid = api.account(users::named(&head.headers).as_deref()).await?;
        let request: StartRequest = rpc::stream_request(incoming).await?;
        prepare(uid, request, &head.headers)
    };
    let start = match prepared.await {
        Ok(start) => start,
        Err(error) => return events::refuse(&error),
    };
    let (listener, messages) = mpsc::channel(events::QUEUE);
    let request = api.next_request();
    api.table.expect(request, listener);
    api.tell_init(ToInit::Start { request, start }).await;
    // The process's deadline is init's; the stream has none of its own.
    events::answer(messages, manner(&head.headers)).await
}

/// Follows a process that was started before.
pub(crate) async fn connect(api: &Rc<Api>, request: Request<Incoming>) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let found = async {
        let request: ConnectRequest = rpc::stream_request(incoming).await?;
        api.table.find(&request.process)
    };
    let process = match found.await {
        Ok(process) => process,
        Err(error) => return events::refuse(&error),
    };
    let (listener, messages) = mpsc::channel(events::QUEUE);
    process.listen(listener);
    let deadline = events::deadline(&head.headers);
    events::answer(messages, Manner { deadline, ..manner(&head.headers) }).await
}

/// Lists what runs.
pub(crate) fn list(api: &Api) -> ListResponse {
    ListResponse { processes: api.table.list() }
}

/// Writes to a process.
pub(crate) async fn send_input(api: &Api, incoming: Incoming) -> Result<Empty, Error> {
    let request: SendInputRequest = rpc::request(incoming).await?;
    write(api, &request.process, request.input).await?;
    Ok(Empty {})
}

/// Writes a stream of pieces to a process; answered when all were taken.
pub(crate) async fn stream_input(api: &Api, mut incoming: Incoming) -> Response<Body> {
    let outcome = async {
        let mut process: Option<Selector> = None;
        let mut decoder = Decoder::default();
        while let Some(frame) = incoming.frame().await {
            let broken = |_| Error::new(Code::Canceled, "the stream of input broke off");
            let Ok(bytes) = frame.map_err(broken)?.into_data() else { continue };
            decoder.push(&bytes);
            while let Some(envelope) = decoder.decode()? {
                let Envelope::Message(json) = envelope else { continue };
                let message: StreamInputRequest = rpc::parse(&json)?;
                match message.event {
                    StreamInputEvent::Start(start) => {
                        api.table.find_running(&start.process)?;
                        process = Some(start.process);
                    }
                    StreamInputEvent::Data(data) => {
                        let process = process.as_ref().ok_or_else(|| {
                            Error::new(Code::InvalidArgument, "the first message must be start")
                        })?;
                        write(api, process, data.input).await?;
                    }
                    StreamInputEvent::Keepalive(_) => {}
                }
            }
        }
        process.map(drop).ok_or_else(|| {
            Error::new(Code::InvalidArgument, "the stream of input holds no message")
        })
    };
    let bytes = match outcome.await {
        Ok(()) => {
            let mut bytes = connect::message(&Empty {}).unwrap_or_default().to_vec();
            bytes.extend_from_slice(&connect::end(None));
            Bytes::from(bytes)
        }
        Err(error) => connect::end(Some(&error)),
    };
    body::answer(StatusCode::OK, connect::STREAM, body::full(bytes))
}

/// Lets a process read end of file.
pub(crate) async fn close_stdin(api: &Api, incoming: Incoming) -> Result<Empty, Error> {
    let request: CloseStdinRequest = rpc::request(incoming).await?;
    let process = api.table.find_running(&request.process)?;
    if process.sink().is_some_and(|sink| sink.is_terminal()) {
        let text = "a terminal has no end of file to close: send the character 4 (Ctrl-D)";
        return Err(Error::new(Code::FailedPrecondition, text));
    }
    process.close_sink();
    api.tell_init(ToInit::CloseStdin { id: process.id }).await;
    Ok(Empty {})
}

/// Sends a signal.
pub(crate) async fn send_signal(api: &Api, incoming: Incoming) -> Result<Empty, Error> {
    let request: SendSignalRequest = rpc::request(incoming).await?;
    let signal = signal_number(&request.signal).ok_or_else(|| {
        let name: String = request.signal.chars().take(64).collect();
        Error::new(Code::InvalidArgument, format!("unknown signal {name}"))
    })?;
    let process = api.table.find_running(&request.process)?;
    api.tell_init(ToInit::Signal { id: process.id, signal }).await;
    Ok(Empty {})
}

/// Changes the size of a terminal.
pub(crate) async fn update(api: &Api, incoming: Incoming) -> Result<Empty, Error> {
    let request: UpdateRequest = rpc::request(incoming).await?;
    let process = api.table.find_running(&request.process)?;
    let Some(pty) = request.pty else { return Ok(Empty {}) };
    let sink = process
        .sink()
        .filter(|sink| sink.is_terminal())
        .ok_or_else(|| Error::new(Code::FailedPrecondition, "the process has no terminal"))?;
    let resized = sink.resize(pty.size).await;
    resized.map_err(|error| Error::new(Code::Internal, format!("cannot resize: {error}")))?;
    Ok(Empty {})
}

fn prepare(uid: u32, request: StartRequest, headers: &HeaderMap) -> Result<Start, Error> {
    if request.process.cmd.is_empty() {
        return Err(Error::new(Code::InvalidArgument, "the request names no program"));
    }
    let bad = |name: &String| name.is_empty() || name.contains(['=', '\0']);
    if request.process.envs.keys().any(bad) {
        return Err(Error::new(Code::InvalidArgument, "a variable has no usable name"));
    }
    let wiring = match (request.pty, request.stdin) {
        (Some(pty), _) => {
            let (cols, rows) = cells(pty.size);
            Wiring::Terminal { cols, rows }
        }
        (None, Some(false)) => Wiring::NoStdin,
        (None, Some(true) | None) => Wiring::Pipes,
    };
    let deadline_ms = events::deadline(headers)
        .map(|deadline| u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    let tag = request.tag.map(|tag| tag.chars().take(256).collect());
    Ok(Start { uid, command: request.process.into(), tag, wiring, deadline_ms })
}

async fn write(api: &Api, selector: &Selector, input: Input) -> Result<(), Error> {
    let process = api.table.find_running(selector)?;
    let closed = || Error::new(Code::FailedPrecondition, "the process's input is closed");
    let sink = process.sink().ok_or_else(closed)?;
    let bytes = match (&input, sink.is_terminal()) {
        (Input::Stdin(bytes), false) | (Input::Pty(bytes), true) => &bytes.0,
        (Input::Stdin(_), true) => {
            let text = "the process has a terminal: send `pty` input";
            return Err(Error::new(Code::InvalidArgument, text));
        }
        (Input::Pty(_), false) => {
            let text = "the process has no terminal: send `stdin` input";
            return Err(Error::new(Code::InvalidArgument, text));
        }
    };
    sink.write(bytes).await.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => closed(),
        _ if error.raw_os_error() == Some(libc::EIO) => closed(),
        _ => Error::new(Code::Internal, format!("cannot write: {error}")),
    })
}

fn manner(headers: &HeaderMap) -> Manner {
    Manner {
        keepalive: events::keepalive(headers),
        message: pump::message(Event::Keepalive(Empty {})),
        deadline: None,
    }
}
