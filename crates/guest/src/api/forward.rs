//! Handing file work to a worker that has the account's rights and no others.
//!
//! One worker for each account, started when it is first needed and again when
//! it has been killed. A request gets a connection of its own.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    rc::Rc,
    time::Duration,
};

use guest_protocol::connect::{Code, Error};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Request, Response,
    client::conn::http1,
    header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue},
    http::request::Parts,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use super::Api;
use crate::{
    channel::channel,
    http::body::Body,
    messages::{Serve, ToInit},
};

/// A worker that is killed again and again is the workload's doing.
const ATTEMPTS: usize = 3;
/// A worker starts in milliseconds, and greets in less.
const START: Duration = Duration::from_secs(10);

/// Workers by account.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// Held while one starts, so that two requests do not start two.
    running: Mutex<HashMap<u32, mpsc::Sender<OwnedFd>>>,
    pending: RefCell<HashMap<u64, oneshot::Sender<Result<OwnedFd, String>>>>,
}

impl Workers {
    /// Init has started a worker, or not.
    pub(crate) fn arrived(&self, request: u64, worker: Result<OwnedFd, String>) {
        if let Some(waiting) = self.pending.borrow_mut().remove(&request) {
            waiting.send(worker).ok();
        }
    }

    /// Starts the worker of an account before it is needed, so that a template
    /// holds it.
    pub(crate) async fn prepare(&self, api: &Rc<Api>, uid: u32) {
        // A request will try again, and say why it failed.
        self.worker(api, uid).await.ok();
    }

    /// Opens a connection to the worker of an account.
    ///
    /// The worker greets each connection. Without the greeting it has been
    /// killed, and nothing of the request is lost yet: a new worker gets it.
    async fn connect(&self, api: &Rc<Api>, uid: u32) -> Result<UnixStream, Error> {
        let failed = |error: io::Error| Error::new(Code::Unavailable, error.to_string());
        for _ in 0..ATTEMPTS {
            let worker = self.worker(api, uid).await?;
            let (near, far) = StdStream::pair().map_err(failed)?;
            near.set_nonblocking(true).map_err(failed)?;
            let mut near = UnixStream::from_std(near).map_err(failed)?;
            let greeted = match worker.send(far.into()).await {
                Ok(()) => timeout(START, near.read_u8()).await.map_err(|_| {
                    Error::new(Code::Unavailable, "the file worker of this account does not answer")
                })?,
                Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
            };
            if greeted.is_ok() {
                return Ok(near);
            }
            let mut running = self.running.lock().await;
            if running.get(&uid).is_some_and(|known| known.same_channel(&worker)) {
                running.remove(&uid);
            }
        }
        Err(Error::new(Code::Unavailable, "the file worker of this account does not stay alive"))
    }

    /// The running worker of an account, or a new one.
    async fn worker(&self, api: &Rc<Api>, uid: u32) -> Result<mpsc::Sender<OwnedFd>, Error> {
        let mut running = self.running.lock().await;
        if let Some(worker) = running.get(&uid).filter(|worker| !worker.is_closed()) {
            return Ok(worker.clone());
        }
        let worker = self.start(api, uid).await?;
        running.insert(uid, worker.clone());
        Ok(worker)
    }

    async fn start(&self, api: &Rc<Api>, uid: u32) -> Result<mpsc::Sender<OwnedFd>, Error> {
        let request = api.next_request();
        let (sender, receiver) = oneshot::channel();
        self.pending.borrow_mut().insert(request, sender);
        api.tell_init(ToInit::Worker { request, uid }).await;
        let answer = timeout(START, receiver).await;
        self.pending.borrow_mut().remove(&request);
        let unavailable = |text: String| Error::new(Code::Unavailable, text);
        let stream = match answer {
            Ok(Ok(Ok(stream))) => stream,
            Ok(Ok(Err(text))) => return Err(unavailable(text)),
            Ok(Err(_)) | Err(_) => return Err(unavailable("no file worker started".into())),
        };
        let (mut sender, mut receiver) =
            channel(StdStream::from(stream)).map_err(|error| unavailable(error.to_string()))?;
        let (connections, mut queue) = mpsc::channel::<OwnedFd>(1);
        super::task(async move {
            loop {
                tokio::select! {
                    // It never says anything: this is how its end is noticed.
                    _ = receiver.receive::<Serve>() => return,
                    connection = queue.recv() => {
                        let Some(connection) = connection else { return };
                        if sender.send(&Serve, &[connection.as_fd()]).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Ok(connections)
    }
}

/// Sends a request to the worker of an account and passes its answer on.
pub(crate) async fn forward(
    api: &Rc<Api>,
    uid: u32,
    head: Parts,
    body: Body,
) -> Result<Response<Body>, Error> {
    let stream = api.workers.connect(api, uid).await?;
    let gone = |error: hyper::Error| {
        Error::new(Code::Unavailable, format!("the file worker did not answer: {error}"))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(gone)?;
    super::task(async move {
        // Its failure is seen by the request or by the body.
        connection.await.ok();
    });
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let mut request = Request::builder().method(head.method).uri(target);
    if let Some(headers) = request.headers_mut() {
        *headers = end_to_end(head.headers);
    }
    let request =
        request.body(body).map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
    let response = sender.send_request(request).await.map_err(gone)?;
    Ok(response.map(|body| body.map_err(io::Error::other).boxed_unsync()))
}

/// Headers that concern the request, not the connection it came on. Whether a
/// body is chunked is decided anew from its length.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in [AUTHORIZATION, CONNECTION] {
        headers.remove(name);
    }
    headers.insert(HOST, HeaderValue::from_static("files"));
    headers
}
