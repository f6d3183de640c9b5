//! Bodies of answers, and reading those of requests.

use std::{convert::Infallible, io};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
};

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
pub(crate) async fn read(body: Incoming, limit: usize) -> Option<Bytes> {
    Some(Limited::new(body, limit).collect().await.ok()?.to_bytes())
}
