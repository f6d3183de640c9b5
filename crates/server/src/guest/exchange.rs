//! One HTTP/1.1 exchange with a guest over one stream of its link.
//!
//! A guest may answer before it has read the whole request, and then read no
//! more of it: a full disk is known long before an upload ends. So a request
//! that cannot be sent any further is not an error yet; the answer is, or that
//! none comes ([`Talk`]).

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use guest_protocol::client::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
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
        .handshake(TokioIo::new(Talk { stream, deaf: false }))
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

/// A stream whose far end may stop listening before it has spoken.
struct Talk<S> {
    stream: S,
    /// Whether what is written from now on reaches nobody.
    deaf: bool,
}

impl<S> Talk<S> {
    /// Nothing more can be written, which is for the answer to explain. Whoever
    /// waits for it hears of its end, and [`stalled`] bounds the wait.
    fn unless_deaf<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written {
            tracing::debug!(%error, "a guest does not take the rest of a request");
            self.deaf = true;
            return Poll::Pending;
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Talk<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Talk<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.unless_deaf(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deaf {
            return Poll::Pending;
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.unless_deaf(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
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

    /// Pieces of an upload that does not end by itself.
    fn endless() -> Body {
        let piece = bytes::Bytes::from_static(&[b'x'; 16 * 1024]);
        let pieces =
            futures::stream::repeat_with(move || Ok(http_body::Frame::data(piece.clone())));
        http_body_util::StreamBody::new(pieces).boxed_unsync()
    }

    /// A guest whose disk is full says so early and reads no more. Its refusal to
    /// read may be known here before its answer is.
    #[tokio::test(start_paused = true)]
    async fn a_guest_that_answers_before_the_end_of_an_upload_is_heard() {
        let refusal = b"HTTP/1.1 507 Full\r\ncontent-length: 4\r\n\r\nfull";
        for (hangs_up, delay) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
            let (reads, mut says) = tokio::io::duplex(4096);
            let (writes, mut hears) = tokio::io::duplex(4096);
            let plays = async {
                hears.read_exact(&mut [0; 100_000]).await.unwrap();
                let still = (!hangs_up).then_some(hears);
                sleep(std::time::Duration::from_secs(delay)).await;
                says.write_all(refusal).await.unwrap();
                drop(says);
                std::future::pending::<()>().await;
                drop(still);
            };
            let stop = CancellationToken::new();
            let request = Request::post("/files?path=/x").header("host", "guest");
            let request = request.body(endless()).unwrap();
            let near = tokio::io::join(reads, writes);
            let whole = async {
                let exchanged = exchange(near, request, Route::FileWrite, Meter::default(), &stop);
                let answer = exchanged.await.unwrap();
                let status = answer.status().as_u16();
                (status, answer.into_body().collect().await.unwrap().to_bytes())
            };
            let (status, body) = tokio::select! {
                answer = whole => answer,
                () = plays => unreachable!(),
            };
            assert_eq!((status, &body[..]), (507, &b"full"[..]), "{hangs_up} {delay}");
        }
    }

    /// One that hangs up without an answer is not waited for.
    #[tokio::test(start_paused = true)]
    async fn a_guest_that_hangs_up_in_an_upload_is_an_error() {
        let (near, mut far) = tokio::io::duplex(4096);
        let hangs_up = async {
            far.read_exact(&mut [0; 1000]).await.unwrap();
            drop(far);
        };
        let stop = CancellationToken::new();
        let request = Request::post("/files?path=/x").header("host", "guest");
        let request = request.body(endless()).unwrap();
        let exchanged = exchange(near, request, Route::FileWrite, Meter::default(), &stop);
        let error = tokio::join!(exchanged, hangs_up).0.unwrap_err();
        assert_eq!(error.status(), StatusCode::BAD_GATEWAY);
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
