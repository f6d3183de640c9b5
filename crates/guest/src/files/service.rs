//! The HTTP service of a worker, one connection for each request.

use std::{
    convert::Infallible,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    path::Path,
    rc::Rc,
};

use guest_protocol::{
    connect::{Code, Error},
    filesystem::{
        EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
        SERVICE, WatchRequest, Watcher, WatcherEvents,
    },
    process::Empty,
};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncWriteExt as _, net::UnixStream, task::spawn_blocking};

use super::{
    Worker, directories, download,
    failure::{Failure, Kind},
    moving, upload, watchers,
};
use crate::http::{
    body::{self, Body},
    rpc,
};

/// Serves one connection of the API to its end.
pub(crate) async fn serve(worker: Rc<Worker>, connection: OwnedFd) {
    let stream = StdStream::from(connection);
    let stream: io::Result<UnixStream> =
        stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    let Ok(mut stream) = stream else { return };
    // The greeting: the API sends its request only to a worker that lives.
    if stream.write_all(&[0]).await.is_err() {
        return;
    }
    let service = service_fn(|request| {
        let worker = worker.clone();
        async move { Ok::<_, Infallible>(route(&worker, request).await) }
    });
    http1::Builder::new()
        .max_buf_size(128 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

async fn route(worker: &Rc<Worker>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str(), path.strip_prefix(SERVICE)) {
        (&Method::GET, "/files", _) => download::answer(worker, &request).await,
        (&Method::POST, "/files", _) => upload::answer(worker, request).await,
        (&Method::POST, _, Some("WatchDir")) => watchers::stream(worker, request).await,
        (&Method::POST, _, Some(method)) => call(worker, method, request.into_body()).await,
        _ => body::plain_error(StatusCode::NOT_FOUND, "not found"),
    }
}

/// A unary method of `filesystem.Filesystem`.
async fn call(worker: &Rc<Worker>, method: &str, body: Incoming) -> Response<Body> {
    match method {
        "Stat" => entry(worker, body, directories::stat).await,
        "MakeDir" => entry(worker, body, directories::make).await,
        "ListDir" => rpc::respond(list(worker, body).await),
        "Move" => rpc::respond(rename(worker, body).await),
        "Remove" => rpc::respond(remove(worker, body).await),
        "CreateWatcher" => rpc::respond(create_watcher(worker, body).await),
        "GetWatcherEvents" => rpc::respond(watcher_events(worker, body).await),
        "RemoveWatcher" => rpc::respond(remove_watcher(worker, body).await),
        _ => rpc::fail(&Error::new(Code::Unimplemented, "there is no such method")),
    }
}

async fn entry(
    worker: &Worker,
    body: Incoming,
    work: fn(&Path) -> Result<EntryInfo, Failure>,
) -> Response<Body> {
    let outcome = async {
        let request: PathRequest = rpc::request(body).await?;
        let path = worker.resolve(&request.path);
        let entry = blocking(move || work(&path)).await?;
        Ok(EntryResponse { entry })
    };
    rpc::respond(outcome.await)
}

async fn list(worker: &Worker, body: Incoming) -> Result<ListDirResponse, Error> {
    let request: ListDirRequest = rpc::request(body).await?;
    let path = worker.resolve(&request.path);
    let entries = blocking(move || directories::list(&path, request.depth)).await?;
    Ok(ListDirResponse { entries })
}

async fn rename(worker: &Worker, body: Incoming) -> Result<EntryResponse, Error> {
    let request: MoveRequest = rpc::request(body).await?;
    let (source, destination) =
        (worker.resolve(&request.source), worker.resolve(&request.destination));
    let entry = blocking(move || moving::rename(&source, &destination)).await?;
    Ok(EntryResponse { entry })
}

async fn remove(worker: &Worker, body: Incoming) -> Result<Empty, Error> {
    let request: PathRequest = rpc::request(body).await?;
    let path = worker.resolve(&request.path);
    if path == Path::new("/") {
        let text = "the root directory cannot be removed";
        return Err(Failure::new(Kind::Invalid, text).into());
    }
    blocking(move || directories::remove(&path)).await?;
    Ok(Empty {})
}

async fn create_watcher(worker: &Rc<Worker>, body: Incoming) -> Result<Watcher, Error> {
    let request: WatchRequest = rpc::request(body).await?;
    Ok(Watcher { watcher_id: worker.watchers.create(worker, request).await? })
}

async fn watcher_events(worker: &Worker, body: Incoming) -> Result<WatcherEvents, Error> {
    let request: Watcher = rpc::request(body).await?;
    Ok(WatcherEvents { events: worker.watchers.take(&request.watcher_id)? })
}

async fn remove_watcher(worker: &Worker, body: Incoming) -> Result<Empty, Error> {
    let request: Watcher = rpc::request(body).await?;
    worker.watchers.remove(&request.watcher_id)?;
    Ok(Empty {})
}

/// Runs file calls on a thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(Failure::internal)?
}
