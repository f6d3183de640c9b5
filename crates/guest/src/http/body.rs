//! Bodies of answers, and reading those of requests.

use std::{convert::Infallible, io};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
};
use tokio::task::spawn_local;

/// What is read of a refused body after its answer: whatever was under way when
/// the answer was given, so that its sender sees the answer and not a break.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;

/// A body of any kind.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is known.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// An answer with a JSON body.
pub(crate) fn json(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    answer(status, "application/json", full(bytes))
}

/// An answer with a body of a kind.
pub(crate) fn answer(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// The plain error of `/files` and of unknown paths.
pub(crate) fn plain_error(status: StatusCode, message: &str) -> Response<Body> {
    let body = serde_json::json!({ "code": status.as_u16(), "message": message });
    json(status, body.to_string())
}

/// Reads a whole body of at most `limit` bytes; `None` if it is longer or
/// breaks off.
pub(crate) async fn read(mut body: Incoming, limit: usize) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(piece) = next(&mut body).await? {
        if bytes.len() + piece.len() > limit {
            discard(body);
            return None;
        }
        bytes.extend_from_slice(&piece);
    }
    Some(bytes.freeze())
}

/// Reads on in a body that is refused, while its answer is already on the way,
/// and then stops, which ends the connection.
pub(crate) fn discard(mut body: Incoming) {
    let mut left = MAX_DISCARDED;
    drop(spawn_local(async move {
        while let Some(Some(piece)) = next(&mut body).await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    }));
}

/// The next piece; `None` if it broke off, `Some(None)` at the end.
pub(crate) async fn next(body: &mut Incoming) -> Option<Option<Bytes>> {
    loop {
        match body.frame().await {
            None => return Some(None),
            Some(Err(_)) => return None,
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Some(Some(bytes));
                }
            }
        }
    }
}
