//! One HTTP/1.1 exchange with a guest over one stream of its link.

use guest_protocol::client::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    body::{Answer, Connection, Meter, Metered},
    table::{Form, Route},
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
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
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
    // A process may be quiet for as long as it likes; a file may not.
    let patience = (route.form() != Form::Stream).then_some(limits::STALL_TIME);
    filter(response)
        .map(|response| response.map(|body| Answer::new(connection, body, patience, stop.clone())))
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
    use http_body_util::{BodyExt as _, Empty};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// Reads a request and answers it with these bytes.
    async fn play(far: &mut DuplexStream, bytes: &[u8]) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(far.read_u8().await.unwrap());
        }
        far.write_all(bytes).await.unwrap();
    }

    fn get(path: &str) -> Request<Body> {
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        Request::get(path).header("host", "guest").body(body).unwrap()
    }

    /// What a client gets when a guest answers with these bytes and hangs up.
    async fn answer(bytes: &[u8]) -> Result<Response<Answer>, ApiError> {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let plays = async {
            play(&mut far, bytes).await;
            drop(far);
        };
        let stop = CancellationToken::new();
        let request = get("/files?path=/x");
        let exchanged = exchange(near, request, Route::FileRead, Meter::default(), &stop);
        tokio::join!(exchanged, plays).0
    }

    /// G-01: whatever a guest sends, the answer is one of ours or a part of it
    /// that cannot be taken for the whole.
    #[tokio::test]
    async fn a_guest_that_answers_nonsense_is_refused() {
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
        let large = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(200_000));
        for bytes in [
            "",
            "\0\0\0\0",
            "SSH-2.0-guest\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\n\r\nends with the stream",
            "HTTP/1.1 302 Found\r\nlocation: http://evil\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            &many,
            &large,
        ] {
            let error = answer(bytes.as_bytes()).await.unwrap_err();
            assert_eq!(error.status(), StatusCode::BAD_GATEWAY, "{bytes:.60}: {error}");
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error() {
        for bytes in [
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            let body = answer(bytes.as_bytes()).await.unwrap().into_body();
            assert!(body.collect().await.is_err(), "{bytes}");
        }
    }

    #[tokio::test]
    async fn only_harmless_headers_come_out() {
        let bytes = "HTTP/1.1 206 OK\r\ncontent-type: text/html\r\nset-cookie: a=b\r\n\
                     content-range: bytes 0-2/9\r\nlocation: http://evil\r\n\
                     access-control-allow-origin: *\r\nx-coldframe-refused: 1\r\n\
                     content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\
                     trailer: x-evil\r\n\r\n3\r\nabc\r\n0\r\nx-evil: 1\r\n\r\n";
        let answer = answer(bytes.as_bytes()).await.unwrap();
        let mut names: Vec<_> = answer.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-range", "content-type"]);
        assert_eq!(answer.headers()["content-type"], "application/octet-stream");
        let body = answer.into_body().collect().await.unwrap();
        assert!(body.trailers().is_none());
        assert_eq!(body.to_bytes(), "abc");
    }

    /// A guest that does nothing is not waited for.
    #[tokio::test(start_paused = true)]
    async fn a_guest_that_does_nothing_times_out() {
        let stop = CancellationToken::new();
        let (near, _far) = tokio::io::duplex(1024);
        let exchanged = exchange(near, get("/health"), Route::Health, Meter::default(), &stop);
        assert_eq!(exchanged.await.unwrap_err().status(), StatusCode::GATEWAY_TIMEOUT);

        let (near, mut far) = tokio::io::duplex(1024);
        let begins = play(&mut far, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc");
        let request = get("/files?path=x");
        let exchanged = exchange(near, request, Route::FileRead, Meter::default(), &stop);
        let body = tokio::join!(exchanged, begins).0.unwrap().into_body();
        assert!(body.collect().await.unwrap_err().to_string().contains("nothing"));
    }

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
