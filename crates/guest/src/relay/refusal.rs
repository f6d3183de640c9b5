//! The answer where the mode has no such way out.
//!
//! This is the only HTTP that the relay speaks: in the other modes the gateway
//! answers. Whatever is asked gets the same refusal.

use std::{convert::Infallible, future::ready, time::Duration};

use bytes::Bytes;
use guest_protocol::control::Mode;
use http_body_util::Full;
use hyper::{Response, StatusCode, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, time::timeout};

/// A connection ends after this, however slowly it asks.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Refuses whatever the client asks.
pub(crate) async fn answer(client: TcpStream, mode: Mode) {
    let service = service_fn(|_| ready(Ok::<_, Infallible>(refusal(mode))));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .max_buf_size(32 * 1024)
        .keep_alive(false)
        .serve_connection(TokioIo::new(client), service);
    timeout(MAX_TIME, connection).await.ok();
}

/// S10, U18: a stable code and a sentence for people.
fn refusal(mode: Mode) -> Response<Full<Bytes>> {
    let detail = if mode == Mode::Off {
        "this sandbox is in mode off: nothing outside it can be reached"
    } else {
        "this sandbox is in mode brokered: it has no proxy, only the named paths on port 8788"
    };
    let body = serde_json::json!({
        "type": "about:blank", "title": "Forbidden", "status": 403,
        "code": "mode_denied", "detail": detail,
    });
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::FORBIDDEN;
    let kind = hyper::header::HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    /// U18: a stable code and a sentence.
    #[tokio::test]
    async fn a_refusal_says_the_code_and_a_sentence() {
        for (mode, word) in [(Mode::Off, "mode off"), (Mode::Brokered, "mode brokered")] {
            let body = refusal(mode).into_body().collect().await.unwrap().to_bytes();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["code"], "mode_denied");
            assert!(problem["detail"].as_str().unwrap().contains(word));
        }
    }
}
