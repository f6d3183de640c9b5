//! The loopback listener: `/health` and `/envs` for programs inside.
//!
//! Its callers are the workload, so connections, headers and time are bounded.
//! Everything else of the API is reachable over the link only.

use std::{convert::Infallible, io, net::TcpListener as StdListener, rc::Rc, time::Duration};

use hyper::{Request, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

use super::{Api, health, task};
use crate::http::body;

/// Connections at the same time; more wait in the backlog.
const MAX_CONNECTIONS: usize = 32;
/// A connection ends after this, however slowly it asks.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Accepts for ever.
pub(crate) async fn serve(api: Rc<Api>, listener: StdListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let places = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else {
            crate::relay::pause().await;
            continue;
        };
        let api = api.clone();
        task(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let known = health::answer(&api, request.method(), request.uri().path());
                let unknown = || body::plain_error(StatusCode::NOT_FOUND, "not found");
                std::future::ready(Ok::<_, Infallible>(known.unwrap_or_else(unknown)))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(10))
                .max_buf_size(32 * 1024)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            timeout(MAX_TIME, connection).await.ok();
            drop(place);
        });
    }
}
