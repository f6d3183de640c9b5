//! One HTTP/1.1 exchange with a guest over one stream of its link.

use guest_protocol::client::Body;
use guest_protocol::mux::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    body::{Answer, Connection, Meter, Metered},
    table::Route,
};
use crate::{error::ApiError, limits};

/// Bytes of an answer that are buffered at most.
const BUFFER: usize = 64 * 1024;

/// Headers of a guest that a client gets to see. Length and framing are made
/// anew from the body itself.
const PASSED: [HeaderName; 2] = [header::CONTENT_RANGE, header::ACCEPT_RANGES];

/// Types a guest may name; anything else is bytes. None of them is rendered or
/// run by a browser.
const TYPES: [&str; 4] =
    ["application/json", "application/connect+json", "application/octet-stream", "text/plain"];

/// Sends `request` and returns the filtered answer with its body still coming.
pub(crate) async fn exchange(
    stream: Stream,
    request: Request<Body>,
    route: Route,
    meter: Meter,
    stop: &CancellationToken,
) -> Result<Response<Answer>, ApiError> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER)
        .max_headers(limits::HEADERS)
        .max_header_size(limits::HEADER_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ApiError::guest_broke)?;
    let mut connection: Option<Connection> = Some(Box::pin(connection));
    let sending = sender.send_request(request.map(|body| Metered::new(body, meter.clone())));
    let head = head(sending, &mut connection);
    let response = tokio::select! {
        response = head => response.map_err(ApiError::guest_broke)?,
        error = stalled(route, &meter) => return Err(error),
    };
    filter(response)
        .map(|response| response.map(|body| Answer::new(connection, body, stop.clone())))
}

/// Waits for the head of the answer while moving the connection along.
async fn head(
    sending: impl Future<Output = hyper::Result<Response<Incoming>>>,
    connection: &mut Option<Connection>,
) -> hyper::Result<Response<Incoming>> {
    tokio::pin!(sending);
    while let Some(moving) = connection {
        tokio::select! {
            biased;
            response = &mut sending => return response,
            _ = moving => *connection = None,
        }
    }
    sending.await
}

/// Resolves when whoever has to act has done nothing for a while.
async fn stalled(route: Route, meter: &Meter) -> ApiError {
    let mut seen = meter.bytes();
    loop {
        sleep(limits::STALL_TIME).await;
        let (bytes, client) = (meter.bytes(), meter.client_is_due());
        if client && route == Route::ProcessInputStream {
            // A person at a keyboard may think for as long as the sandbox lives.
            continue;
        }
        if bytes == seen {
            return if client { ApiError::slow_client() } else { ApiError::guest_stalled() };
        }
        seen = bytes;
    }
}

/// The answer as a client gets it.
fn filter(response: Response<Incoming>) -> Result<Response<Incoming>, ApiError> {
    let (parts, body) = response.into_parts();
    let plain = parts.status.is_success()
        || parts.status.is_client_error()
        || parts.status.is_server_error();
    if !plain {
        return Err(ApiError::guest_broke(format!("status {}", parts.status)));
    }
    if !framed(parts.status, &parts.headers) {
        // Such a body ends when the stream does, so a dying guest would look
        // like the end of a file.
        return Err(ApiError::guest_broke("an answer without length or chunks"));
    }
    let mut filtered = Response::new(body);
    *filtered.status_mut() = parts.status;
    let headers = filtered.headers_mut();
    for name in PASSED {
        if let Some(value) = parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    if let Some(given) = parts.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, harmless(given));
    }
    Ok(filtered)
}

/// Whether the end of the body can be told from a broken connection.
fn framed(status: StatusCode, headers: &HeaderMap) -> bool {
    status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || headers.contains_key(header::CONTENT_LENGTH)
        || headers.contains_key(header::TRANSFER_ENCODING)
}

fn harmless(given: &HeaderValue) -> HeaderValue {
    let kind = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let known = TYPES.iter().find(|known| kind.eq_ignore_ascii_case(known));
    HeaderValue::from_static(known.unwrap_or(&"application/octet-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_name_a_type_that_a_browser_renders() {
        for (given, passed) in [
            ("application/json; charset=utf-8", "application/json"),
            ("text/html", "application/octet-stream"),
            ("image/svg+xml", "application/octet-stream"),
            ("", "application/octet-stream"),
        ] {
            assert_eq!(harmless(&HeaderValue::from_static(given)), passed);
        }
    }

    #[test]
    fn a_body_that_ends_with_the_stream_is_not_framed() {
        assert!(!framed(StatusCode::OK, &HeaderMap::new()));
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("3"));
        assert!(framed(StatusCode::OK, &headers));
    }
}
