//! A typed client of the guest API.
//!
//! It is the same client whether the request travels over the link of a sandbox
//! on this host or over REST to a server: a [`Transport`] sends one HTTP request
//! and returns the answer. What a guest answers is bounded here: a message by
//! [`connect::MAX_MESSAGE`], an error text by [`MAX_ERROR`].

mod files;
mod processes;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use serde::{Serialize, de::DeserializeOwned};

pub use self::processes::ProcessStream;
use crate::connect::{self, Code};

/// The most bytes of an error answer that are read.
const MAX_ERROR: usize = 64 * 1024;

/// Any error of a transport or a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A body of a request or an answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The header that names the account a call runs as, where a transport
/// translates it; over a link it becomes the guest's own form.
pub const USER_HEADER: &str = "x-coldframe-user";

/// Sends a request to the guest API of one sandbox.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Sends `request`, whose URI is a path and perhaps a query.
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError>;
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The guest says no, and why.
    #[error("{0}")]
    Refused(connect::Error),
    /// The sandbox could not be reached, or the connection broke off.
    #[error("the sandbox did not answer")]
    Unreachable(#[source] BoxError),
    /// The answer makes no sense.
    #[error("the sandbox sent an answer that cannot be read: {0}")]
    Unreadable(String),
}

/// The guest API of one sandbox.
#[derive(Clone, Debug)]
pub struct GuestClient<T> {
    transport: T,
}

impl<T: Transport> GuestClient<T> {
    /// Takes a way to the guest.
    pub fn new(transport: T) -> Self {
        Self { transport }
    }

    /// A unary call.
    async fn call<A: Serialize, B: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        user: &str,
        message: &A,
    ) -> Result<B, ClientError> {
        let body = serde_json::to_vec(message).map_err(unreadable)?;
        let request =
            post(service, method, user, connect::UNARY).body(full(body)).map_err(unreadable)?;
        let response = self.send(request).await?;
        let body = collect(response.into_body(), connect::MAX_MESSAGE).await?;
        serde_json::from_slice(&body).map_err(unreadable)
    }

    /// Sends a request; an answer that is not a success is an error.
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ClientError> {
        let response = self.transport.send(request).await.map_err(ClientError::Unreachable)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = collect(response.into_body(), MAX_ERROR).await?;
        Err(ClientError::Refused(refusal(status, &body)))
    }
}

/// Reads an error body: Connect's own, a plain `{"code":404,…}`, or a problem.
fn refusal(status: StatusCode, body: &[u8]) -> connect::Error {
    if let Ok(error) = serde_json::from_slice::<connect::Error>(body) {
        return error;
    }
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = value["message"].as_str().or_else(|| value["detail"].as_str());
    let code = match status.as_u16() {
        400 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::AlreadyExists,
        413 | 429 | 507 => Code::ResourceExhausted,
        502 | 503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Unknown,
    };
    connect::Error::new(code, text.map_or_else(|| format!("status {status}"), str::to_owned))
}

fn post(service: &str, method: &str, user: &str, kind: &str) -> http::request::Builder {
    Request::post(format!("{service}{method}"))
        .header(header::CONTENT_TYPE, kind)
        .header("connect-protocol-version", "1")
        .header(USER_HEADER, user)
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Reads a body to its end. `Limited` would do the same, but the compiler cannot
/// show that a future holding it over a boxed error may move between threads.
async fn collect(mut body: Body, limit: usize) -> Result<Bytes, ClientError> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ClientError::Unreachable)?.into_data() else { continue };
        if whole.len() + data.len() > limit {
            return Err(unreadable(format!("more than {limit} bytes")));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

fn unreadable(error: impl std::fmt::Display) -> ClientError {
    ClientError::Unreadable(error.to_string())
}
