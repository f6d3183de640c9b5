//! The host's end of the link, as small as a test needs it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use guest_protocol::{
    connect::{self, Decoder, Envelope, Error},
    control,
    hello::{Hello, VERSION},
    link::{Pipe, Transport},
    mux::{self, Limits, Opener, Role, Stream},
    preface::{self, Preface},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::mpsc,
    time::timeout,
};

/// Every wait of a test ends.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
static EPOCH: AtomicU32 = AtomicU32::new(1);

/// A session with a guest.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    opener: Opener,
    incoming: Arc<Mutex<Option<mpsc::Receiver<Stream>>>>,
}

impl Host {
    /// Says hello over `socket`.
    pub(crate) async fn connect(socket: UnixStream) -> Self {
        let mut transport = Transport::new(socket);
        let epoch = EPOCH.fetch_add(1, Ordering::Relaxed) ^ std::process::id() << 8;
        let hello = Hello { version: VERSION, epoch };
        let greeting = timeout(LIMIT, transport.greet(&hello, Pipe::Used)).await;
        greeting.expect("the guest answers in time").expect("the guest answers");
        let (opener, driven) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (session, drive) = mux::session(&mut transport, Role::Host, Limits::default());
            opener.send(session).expect("the test waits");
            drive.await.ok();
        });
        let session = driven.await.expect("the session starts");
        let incoming = Arc::new(Mutex::new(Some(session.incoming)));
        Self { opener: session.opener, incoming }
    }

    /// The streams that the guest opens.
    pub(crate) fn incoming(&self) -> mpsc::Receiver<Stream> {
        self.incoming.lock().expect("no panic").take().expect("nobody else takes them")
    }

    /// Opens a stream of a kind.
    pub(crate) async fn open(&self, kind: Preface) -> Stream {
        let mut stream = self.opener.open().await.expect("a stream opens");
        preface::write(&mut stream, kind).await.expect("the preface is sent");
        stream
    }

    /// Asks init.
    pub(crate) async fn control(&self, request: control::Request) -> control::Response {
        let mut stream = self.open(Preface::Control).await;
        control::write(&mut stream, &request).await.expect("the request is sent");
        timeout(LIMIT, control::read(&mut stream)).await.expect("in time").expect("init answers")
    }

    /// Sends an HTTP request.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.try_send(request).await.expect("the API answers").expect("the link is up")
    }

    /// Sends an HTTP request that may fail; `None` when the session is over.
    pub(crate) async fn try_send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Option<Response<Incoming>>> {
        let Ok(mut stream) = self.opener.open().await else { return Ok(None) };
        if preface::write(&mut stream, Preface::GuestApi).await.is_err() {
            return Ok(None);
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let sending = timeout(LIMIT, sender.send_request(request));
        sending.await.expect("an answer in time").map(Some)
    }

    /// Waits until the API answers again after it was killed. What was under way
    /// then breaks off; the link does not.
    pub(crate) async fn revived(&self) {
        for _ in 0..500 {
            let health = Request::get("/health").body(Full::default()).expect("a request");
            if self.try_send(health).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the API does not come back");
    }

    /// GET.
    pub(crate) async fn get(&self, path: &str) -> (u16, Bytes) {
        let request = Request::get(path).body(Full::default()).expect("a request");
        finish(self.send(request).await).await
    }

    /// POST.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> (u16, Bytes) {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        finish(self.send(request).await).await
    }

    /// POST of a body that is announced and never sent.
    pub(crate) async fn post_unfinished(&self, path: &str, length: u64) -> (u16, Bytes) {
        let (_body, answer) = self.post_raw(path, &format!("content-length: {length}")).await;
        answer.await
    }

    /// POST of a body without a length that goes on until the answer is there.
    pub(crate) async fn post_endless(&self, path: &str) -> (u16, Bytes) {
        let (mut body, answer) = self.post_raw(path, "transfer-encoding: chunked").await;
        let sending = async {
            let chunk = [b"10000\r\n", &[b'x'; 0x10000][..], b"\r\n"].concat();
            while body.write_all(&chunk).await.is_ok() {}
            std::future::pending::<()>().await
        };
        tokio::select! { answer = answer => answer, () = sending => unreachable!() }
    }

    /// POST of a body that breaks off.
    pub(crate) async fn post_broken(&self, path: &str) {
        let (mut body, _) = self.post_raw(path, "content-length: 1000").await;
        body.write_all(b"half").await.expect("the body is taken");
        body.flush().await.expect("the body is taken");
        // Only now: what follows must not overtake the request.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    /// Begins a request; gives its body to write and its answer to wait for.
    async fn post_raw(
        &self,
        path: &str,
        header: &str,
    ) -> (tokio::io::WriteHalf<Stream>, impl Future<Output = (u16, Bytes)> + use<>) {
        let (mut read, mut write) = tokio::io::split(self.open(Preface::GuestApi).await);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/octet-stream\r\n{header}\r\n\r\n"
        );
        write.write_all(head.as_bytes()).await.expect("the head is sent");
        write.flush().await.expect("the head is sent");
        let answer = async move {
            let mut bytes = Vec::new();
            let reading = async {
                // The head and a short body; what follows is the end or a reset.
                while !bytes.ends_with(b"}") {
                    assert_ne!(read.read_buf(&mut bytes).await.expect("an answer"), 0);
                }
            };
            timeout(LIMIT, reading).await.expect("an answer in time");
            let text = String::from_utf8(bytes).expect("text");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
            (status, Bytes::from(body.to_owned()))
        };
        (write, answer)
    }

    /// A unary call; an error is what the guest says.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        message: &impl Serialize,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(message).expect("a message");
        let (status, body) = self.post(method, &[("content-type", connect::UNARY)], body).await;
        if status == 200 {
            return Ok(serde_json::from_slice(&body).expect("an answer"));
        }
        Err(serde_json::from_slice(&body).expect("an error"))
    }

    /// Opens a server stream.
    pub(crate) async fn stream(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        message: &impl Serialize,
    ) -> Messages {
        self.try_stream(method, headers, message).await.expect("the API answers")
    }

    /// Opens a server stream, unless the API is gone.
    pub(crate) async fn try_stream(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        message: &impl Serialize,
    ) -> Option<Messages> {
        let body = connect::message(message).expect("a message");
        let mut request = Request::post(method).header("content-type", connect::STREAM);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        let response = self.try_send(request).await.ok()??;
        assert_eq!(response.status(), 200);
        Some(Messages { body: response.into_body(), decoder: Decoder::default() })
    }
}

async fn finish(response: Response<Incoming>) -> (u16, Bytes) {
    let status = response.status().as_u16();
    let body = timeout(LIMIT, response.into_body().collect()).await.expect("in time");
    (status, body.expect("a whole body").to_bytes())
}

/// Messages of a server stream.
#[derive(Debug)]
pub(crate) struct Messages {
    body: Incoming,
    decoder: Decoder,
}

impl Messages {
    /// The next message; `Err` is the trailer, `None` in it a clean one.
    pub(crate) async fn next(&mut self) -> Result<Value, Option<Error>> {
        loop {
            match self.decoder.decode().expect("an envelope") {
                Some(Envelope::Message(json)) => {
                    return Ok(serde_json::from_slice(&json).expect("JSON"));
                }
                Some(Envelope::End(error)) => return Err(error),
                None => {}
            }
            let frame = timeout(LIMIT, self.body.frame()).await.expect("a frame in time");
            let Some(Ok(frame)) = frame else {
                return Err(Some(Error::new(connect::Code::Unavailable, "the stream broke off")));
            };
            if let Ok(bytes) = frame.into_data() {
                self.decoder.push(&bytes);
            }
        }
    }
}
