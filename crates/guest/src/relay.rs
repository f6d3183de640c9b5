//! The relay: where programs inside ask for the outside.
//!
//! It listens on two loopback ports, one for named paths and one as a forward
//! proxy. The sandbox's mode is `off`, so every request gets the same refusal.
//! Everything that reaches it comes from the workload: connections, headers
//! and time are bounded, and its account owns nothing.

use std::{
    convert::Infallible,
    future::ready,
    io,
    net::TcpListener as StdListener,
    os::fd::{FromRawFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore, task::spawn_local, time::timeout};

/// The account of the relay.
pub(crate) const UID: u32 = 991;
/// Connections at the same time, over both ports; more wait in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// A connection ends after this, however slowly it asks.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Runs the relay on the two listeners that init bound.
pub(crate) fn run() -> io::Result<()> {
    crate::privilege::give_up_everything(UID, UID, &[])?;
    // SAFETY: init passes exactly two listeners to this role, as the descriptors
    // 3 and 4, and nothing else in this process has taken them.
    let listeners = [3, 4].map(|fd| StdListener::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    crate::runtime::run(1, async {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let [named, proxy] = listeners;
        tokio::try_join!(serve(named, places.clone()), serve(proxy, places)).map(drop)
    })
}

async fn serve(listener: StdListener, places: Arc<Semaphore>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else {
            pause().await;
            continue;
        };
        spawn_local(async move {
            let service = service_fn(|_| ready(Ok::<_, Infallible>(refusal())));
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

/// A failed accept says nothing about the next one, but it may repeat at once.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// S10, U18: the refusal has a stable code and a sentence for people.
fn refusal() -> Response<Full<Bytes>> {
    const BODY: &str = r#"{"type":"about:blank","title":"Forbidden","status":403,"code":"mode_denied","detail":"this sandbox is in mode off: nothing outside it can be reached"}"#;
    let mut response = Response::new(Full::new(Bytes::from_static(BODY.as_bytes())));
    *response.status_mut() = StatusCode::FORBIDDEN;
    let kind = hyper::header::HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U18: a stable code and a sentence.
    #[tokio::test]
    async fn a_refusal_says_the_code_and_a_sentence() {
        use http_body_util::BodyExt as _;
        let body = refusal().into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["code"], "mode_denied");
        assert!(problem["detail"].as_str().unwrap().contains("mode off"));
    }
}
