//! Connections of the host, and which part of the API answers a request.

use std::{
    convert::Infallible,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    rc::Rc,
    sync::Arc,
};

use guest_protocol::{
    connect::{self, Code, Error},
    filesystem::{self, Watcher},
    process,
};
use http_body_util::BodyExt as _;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, sync::Semaphore, time::timeout};

use super::{Api, forward, health, process as processes, users};
use crate::http::{
    body::{self, Body},
    events, rpc,
};

/// Calls and transfers at the same time.
const MAX_CALLS: usize = 128;
/// Streams that follow a process or a directory.
const MAX_STREAMS: usize = 256;

/// Places for requests.
#[derive(Debug)]
pub(crate) struct Room {
    calls: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }
}

/// Serves one connection of the host to its end.
pub(crate) async fn serve(api: Rc<Api>, connection: OwnedFd) {
    let stream = StdStream::from(connection);
    let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    let Ok(stream) = stream else { return };
    let service = service_fn(|request| {
        let api = api.clone();
        async move { Ok::<_, Infallible>(admit(&api, request).await) }
    });
    // A broken connection concerns nobody but its host.
    http1::Builder::new()
        .max_buf_size(32 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

/// Takes a place for the request, which is free again when its answer is read.
async fn admit(api: &Rc<Api>, request: Request<Incoming>) -> Response<Body> {
    let kind = request.headers().get(hyper::header::CONTENT_TYPE);
    let streaming = kind.is_some_and(|kind| kind == connect::STREAM);
    let room = if streaming { &api.room.streams } else { &api.room.calls };
    let Ok(place) = room.clone().try_acquire_owned() else {
        let error = Error::new(Code::ResourceExhausted, "too many requests at the same time");
        return if streaming { events::refuse(&error) } else { rpc::fail(&error) };
    };
    let response = route(api, request).await;
    response.map(|body| {
        body.map_frame(move |frame| {
            let _held = &place;
            frame
        })
        .boxed_unsync()
    })
}

async fn route(api: &Rc<Api>, request: Request<Incoming>) -> Response<Body> {
    if let Some(response) = health::answer(api, request.method(), request.uri().path()) {
        return response;
    }
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/metrics") => return api.meter.answer(),
        (&Method::GET | &Method::POST, "/files") => return files(api, request).await,
        _ => {}
    }
    if request.method() != Method::POST {
        return body::plain_error(StatusCode::NOT_FOUND, "not found");
    }
    if let Some(method) = path.strip_prefix(process::SERVICE) {
        return call(api, method, request).await;
    }
    if let Some(method) = path.strip_prefix(filesystem::SERVICE) {
        return filesystem(api, method, request).await;
    }
    body::plain_error(StatusCode::NOT_FOUND, "not found")
}

/// A method of `process.Process`.
async fn call(api: &Rc<Api>, method: &str, request: Request<Incoming>) -> Response<Body> {
    match method {
        "Start" => return processes::start(api, request).await,
        "Connect" => return processes::connect(api, request).await,
        "StreamInput" => return processes::stream_input(api, request.into_body()).await,
        _ => {}
    }
    let deadline = events::deadline(request.headers());
    let incoming = request.into_body();
    let work = async {
        match method {
            "List" => rpc::respond(Ok(processes::list(api))),
            "SendInput" => rpc::respond(processes::send_input(api, incoming).await),
            "CloseStdin" => rpc::respond(processes::close_stdin(api, incoming).await),
            "SendSignal" => rpc::respond(processes::send_signal(api, incoming).await),
            "Update" => rpc::respond(processes::update(api, incoming).await),
            _ => rpc::fail(&Error::new(Code::Unimplemented, "there is no such method")),
        }
    };
    match deadline {
        None => work.await,
        Some(deadline) => timeout(deadline, work).await.unwrap_or_else(|_| {
            rpc::fail(&Error::new(Code::DeadlineExceeded, "the deadline of this call has passed"))
        }),
    }
}

/// A method of `filesystem.Filesystem`, done by the account's worker.
async fn filesystem(api: &Rc<Api>, method: &str, request: Request<Incoming>) -> Response<Body> {
    let streaming = method == "WatchDir";
    let (head, incoming) = request.into_parts();
    let work = async {
        // A watcher belongs to the account that made it, whoever asks for it.
        if matches!(method, "GetWatcherEvents" | "RemoveWatcher") {
            let watcher: Watcher = rpc::request(incoming).await?;
            let uid = api.permit(crate::files::watchers::owner(&watcher.watcher_id)?)?;
            let text = serde_json::to_vec(&watcher)
                .map_err(|error| Error::new(Code::Internal, error.to_string()))?;
            let mut head = head;
            head.headers.remove(hyper::header::CONTENT_LENGTH);
            head.headers.remove(hyper::header::TRANSFER_ENCODING);
            return forward::forward(api, uid, head, body::full(text)).await;
        }
        let uid = api.account(users::named(&head.headers).as_deref()).await?;
        forward::forward(api, uid, head, pass(incoming)).await
    };
    match work.await {
        Ok(response) => response,
        Err(error) if streaming => events::refuse(&error),
        Err(error) => rpc::fail(&error),
    }
}

/// `/files`, done by the account's worker.
async fn files(api: &Rc<Api>, request: Request<Incoming>) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let query = crate::files::query::Query::parse(head.uri.query().unwrap_or_default());
    let work = async {
        let named = query.get("username").map(str::to_owned).filter(|name| !name.is_empty());
        let name = named.or_else(|| users::named(&head.headers));
        let uid = api.account(name.as_deref()).await?;
        forward::forward(api, uid, head, pass(incoming)).await
    };
    match work.await {
        Ok(response) => response,
        Err(error) => {
            let status = StatusCode::from_u16(error.code.status());
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            body::plain_error(status, &error.message)
        }
    }
}

fn pass(incoming: Incoming) -> Body {
    incoming.map_err(io::Error::other).boxed_unsync()
}
