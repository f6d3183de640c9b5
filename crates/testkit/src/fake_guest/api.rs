//! The scripted guest API: enough of the wire for tests of what is above it.

use std::convert::Infallible;

use bytes::Bytes;
use guest_protocol::{
    bytes_json::Base64,
    client::{Body, BoxError},
    connect::{self, Code, Decoder, Envelope},
    filesystem::{EntryInfo, EntryResponse, FileType, ListDirResponse, PathRequest, WriteInfo},
    mux::Stream,
    process::{
        ConnectRequest, Empty, EndEvent, Event, EventMessage, ListResponse, Output, ProcessInfo,
        Selector, SendSignalRequest, StartEvent, StartRequest,
    },
};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, channel::Channel};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::FakeGuest;

type Sender = http_body_util::channel::Sender<Bytes, BoxError>;

pub(super) async fn serve(guest: FakeGuest, stream: Stream) {
    let service = service_fn(move |request| {
        let guest = guest.clone();
        async move { Ok::<_, Infallible>(answer(guest, request).await) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A client that hangs up early is what some tests are about.
    drop(connection.await);
}

async fn answer(guest: FakeGuest, request: Request<Incoming>) -> Response<Body> {
    let user = request.headers().get(header::AUTHORIZATION);
    let user = user.and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned();
    guest.knowledge().users.push(user);
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or("").to_owned();
    let method = request.method().as_str().to_owned();
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return status(StatusCode::BAD_REQUEST),
    };
    match (method.as_str(), path.as_str()) {
        ("GET", "/health") => status(StatusCode::NO_CONTENT),
        ("GET", "/metrics") => json(&serde_json::json!({
            "cpu_count": 1, "mem_total": 100, "mem_used": 10, "disk_total": 50, "disk_used": 5,
            "processes": guest.knowledge().processes.len(),
        })),
        ("GET", "/files") => read_file(&guest, &file_path(&query)),
        ("POST", "/files") => write_file(&guest, file_path(&query), &body),
        ("POST", "/process.Process/Start") => start(guest, &body),
        ("POST", "/process.Process/Connect") => follow(guest, &body),
        ("POST", "/process.Process/List") => json(&list(&guest)),
        ("POST", "/process.Process/SendSignal") => signal(&guest, &body),
        ("POST", "/filesystem.Filesystem/Stat") => stat(&guest, &body),
        ("POST", "/filesystem.Filesystem/ListDir") => list_dir(&guest),
        ("POST", "/filesystem.Filesystem/Remove") => remove(&guest, &body),
        _ => failed(&connect::Error::new(Code::Unimplemented, "not scripted")),
    }
}

fn start(guest: FakeGuest, body: &[u8]) -> Response<Body> {
    let Some(request) = enveloped::<StartRequest>(body) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let (pid, killed) = {
        let mut knowledge = guest.knowledge();
        knowledge.last_pid += 1;
        let pid = knowledge.last_pid;
        let (kill, killed) = watch::channel(false);
        knowledge.processes.insert(pid, kill);
        knowledge.tags.extend(request.tag.clone().map(|tag| (tag, pid)));
        (pid, killed)
    };
    let (mut sender, response) = streaming();
    tokio::spawn(async move {
        // A reader that is gone ends the script, not the test.
        drop(play(&guest, &mut sender, pid, &request, killed).await);
        guest.knowledge().processes.remove(&pid);
    });
    response
}

async fn play(
    guest: &FakeGuest,
    sender: &mut Sender,
    pid: u32,
    request: &StartRequest,
    mut killed: watch::Receiver<bool>,
) -> Result<(), BoxError> {
    let arguments = &request.process.args;
    let mut code = 0;
    let program = request.process.cmd.as_str();
    if !["echo", "fail", "stderr", "sleep", "flood"].contains(&program) {
        let text = format!("executable file not found in $PATH: {program}");
        sender.send_data(connect::end(Some(&connect::Error::new(Code::NotFound, text)))).await?;
        return Ok(());
    }
    send(sender, Event::Start(StartEvent { pid })).await?;
    match program {
        "echo" => {
            let line = format!("{}\n", arguments.join(" ")).into_bytes();
            send(sender, Event::Data(Output::Stdout(Base64(line)))).await?;
        }
        "stderr" => {
            let line = arguments.join(" ").into_bytes();
            send(sender, Event::Data(Output::Stderr(Base64(line)))).await?;
        }
        "fail" => code = arguments.first().and_then(|code| code.parse().ok()).unwrap_or(1),
        "flood" => {
            let mut left = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
            while left > 0 && !*killed.borrow() {
                let piece = left.min(32 * 1024);
                left -= piece;
                send(sender, Event::Data(Output::Stdout(Base64(vec![b'x'; piece])))).await?;
                guest.knowledge().flooded += piece;
            }
        }
        _ => drop(killed.wait_for(|killed| *killed).await),
    }
    let end = if *killed.borrow() {
        EndEvent { exit_code: -1, exited: false, status: "signal: killed".into(), error: None }
    } else {
        let status = format!("exit status {code}");
        EndEvent { exit_code: code, exited: true, status, error: None }
    };
    send(sender, Event::End(end)).await?;
    sender.send_data(connect::end(None)).await?;
    Ok(())
}

fn follow(guest: FakeGuest, body: &[u8]) -> Response<Body> {
    let Some(ConnectRequest { process: Selector::Pid(pid) }) = enveloped(body) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let killed = guest.knowledge().processes.get(&pid).map(watch::Sender::subscribe);
    let (mut sender, response) = streaming();
    tokio::spawn(async move {
        let Some(mut killed) = killed else {
            let text = format!("process with pid {pid} not found");
            let end = connect::end(Some(&connect::Error::new(Code::NotFound, text)));
            return drop(sender.send_data(end).await);
        };
        drop(send(&mut sender, Event::Start(StartEvent { pid })).await);
        drop(killed.wait_for(|killed| *killed).await);
        drop(send(&mut sender, Event::End(EndEvent { exit_code: -1, ..Default::default() })).await);
        drop(sender.send_data(connect::end(None)).await);
    });
    response
}

async fn send(sender: &mut Sender, event: Event) -> Result<(), BoxError> {
    sender.send_data(connect::message(&EventMessage { event })?).await?;
    Ok(())
}

fn list(guest: &FakeGuest) -> ListResponse {
    let knowledge = guest.knowledge();
    let info = |pid: &u32| ProcessInfo { pid: *pid, ..Default::default() };
    ListResponse { processes: knowledge.processes.keys().map(info).collect() }
}

fn signal(guest: &FakeGuest, body: &[u8]) -> Response<Body> {
    let Ok(SendSignalRequest { process, .. }) = serde_json::from_slice(body) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let knowledge = guest.knowledge();
    let pid = match &process {
        Selector::Pid(pid) => Some(pid),
        Selector::Tag(tag) => knowledge.tags.get(tag),
    };
    match pid.and_then(|pid| knowledge.processes.get(pid)) {
        Some(kill) => {
            kill.send_replace(true);
            json(&Empty {})
        }
        None => failed(&connect::Error::new(Code::NotFound, "no such process")),
    }
}

fn read_file(guest: &FakeGuest, path: &str) -> Response<Body> {
    match guest.file(path) {
        Some(bytes) => {
            let length = bytes.len();
            let mut response = Response::new(full(bytes));
            response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            response
        }
        None if is_directory(guest, path) => {
            plain(StatusCode::BAD_REQUEST, &format!("path '{path}' is a directory"))
        }
        None => plain(StatusCode::NOT_FOUND, &format!("path '{path}' does not exist")),
    }
}

fn is_directory(guest: &FakeGuest, path: &str) -> bool {
    let below = format!("{}/", path.trim_end_matches('/'));
    guest.knowledge().files.keys().any(|file| file.starts_with(&below))
}

fn write_file(guest: &FakeGuest, path: String, body: &[u8]) -> Response<Body> {
    if path.contains("full") {
        return plain(StatusCode::INSUFFICIENT_STORAGE, "not enough disk space");
    }
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let info = WriteInfo { path: path.clone(), name, kind: "file".into(), ..Default::default() };
    guest.knowledge().files.insert(path, body.to_vec());
    json(&[info])
}

fn stat(guest: &FakeGuest, body: &[u8]) -> Response<Body> {
    let Ok(PathRequest { path }) = serde_json::from_slice(body) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let entry = |kind, size| {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let entry = EntryInfo { name, path: path.clone(), kind, size, ..Default::default() };
        json(&EntryResponse { entry })
    };
    if let Some(bytes) = guest.file(&path) {
        return entry(FileType::File, i64::try_from(bytes.len()).unwrap_or(i64::MAX));
    }
    if is_directory(guest, &path) {
        return entry(FileType::Directory, 0);
    }
    failed(&connect::Error::new(Code::NotFound, format!("path '{path}' does not exist")))
}

fn list_dir(guest: &FakeGuest) -> Response<Body> {
    let knowledge = guest.knowledge();
    let entry = |(path, bytes): (&String, &Vec<u8>)| EntryInfo {
        name: path.rsplit('/').next().unwrap_or_default().to_owned(),
        path: path.clone(),
        kind: FileType::File,
        size: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
        ..Default::default()
    };
    json(&ListDirResponse { entries: knowledge.files.iter().map(entry).collect() })
}

fn remove(guest: &FakeGuest, body: &[u8]) -> Response<Body> {
    let Ok(PathRequest { path }) = serde_json::from_slice(body) else {
        return status(StatusCode::BAD_REQUEST);
    };
    guest.knowledge().files.remove(&path);
    json(&Empty {})
}

/// The first message of a streaming request.
fn enveloped<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let mut decoder = Decoder::default();
    decoder.push(body);
    match decoder.decode() {
        Ok(Some(Envelope::Message(json))) => serde_json::from_slice(&json).ok(),
        _ => None,
    }
}

fn streaming() -> (Sender, Response<Body>) {
    let (sender, body) = Channel::<Bytes, BoxError>::new(4);
    let mut response = Response::new(body.boxed_unsync());
    let kind = header::HeaderValue::from_static(connect::STREAM);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    (sender, response)
}

fn json(value: &impl Serialize) -> Response<Body> {
    let mut response = Response::new(full(serde_json::to_vec(value).unwrap_or_default()));
    let kind = header::HeaderValue::from_static(connect::UNARY);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn failed(error: &connect::Error) -> Response<Body> {
    let mut response = json(error);
    *response.status_mut() =
        StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn plain(status: StatusCode, message: &str) -> Response<Body> {
    let mut response = json(&serde_json::json!({"code": status.as_u16(), "message": message}));
    *response.status_mut() = status;
    response
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The `path` of a query, percent-decoded.
fn file_path(query: &str) -> String {
    let raw = query.split('&').find_map(|pair| pair.strip_prefix("path=")).unwrap_or("");
    let mut bytes = Vec::new();
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
