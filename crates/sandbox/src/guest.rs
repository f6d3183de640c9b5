//! The guest API over a link stream.
//!
//! One request, one stream: a guest that misbehaves on one harms no other, and
//! dropping the answer closes the stream, which is how the guest learns that
//! nobody listens any more. Header sizes and counts are bounded, because the
//! guest is hostile.

use async_trait::async_trait;
use guest_protocol::{
    client::{Body, BoxError, Transport, USER_HEADER},
    preface::Preface,
};
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    host::{Host, HostError},
    link::Link,
};
use domain::id::SandboxId;

/// The most header bytes a guest may answer with.
const MAX_HEADERS: usize = 64 * 1024;

/// Sends one request over a fresh guest-API stream.
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    if let Some(user) = request.headers_mut().remove(USER_HEADER) {
        let credentials = format!("{}:", user.to_str()?);
        let basic = format!("Basic {}", base64(credentials.as_bytes()));
        request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_str(&basic)?);
    }
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("guest"));
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await?;
    // Ends when the answer was read or dropped, or when the link breaks.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a guest API stream ended early");
        }
    });
    let response = sender.send_request(request).await?;
    Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
}

#[async_trait]
impl Transport for Link {
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        send(self.open(Preface::GuestApi).await?, request).await
    }
}

/// The guest API of a sandbox that a [`Host`] drives.
#[derive(Clone, Debug)]
pub struct HostedGuest {
    /// Who drives it.
    pub host: Host,
    /// Which one.
    pub id: SandboxId,
}

#[async_trait]
impl Transport for HostedGuest {
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let stream = self.host.open(&self.id).await;
        send(stream.map_err(|error: HostError| BoxError::from(error))?, request).await
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}
