//! The client's door to the API inside a sandbox.
//!
//! A request is sent below `/v1/sandboxes/{id}/guest` with its body streaming
//! in, and the answer streams out; the server authenticates, lets through what
//! its table names and passes the rest on. An answer of the guest with an error
//! status comes back as it is. A refusal of the server itself, which the guest
//! never got to see, is a [`ClientError`].

use std::io;

use bytes::Bytes;
use domain::id::SandboxId;
use futures::TryStreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _, Limited, combinators::UnsyncBoxBody};

use crate::{
    client::{Client, ClientError, refusal},
    problem,
};

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The largest refusal that is read.
const MAX_PROBLEM: usize = 64 * 1024;

/// Marks an answer that the server gave in the guest's place.
pub const REFUSED_BY_SERVER: &str = "x-coldframe-refused";

/// Says, with the start of a process, what becomes of it when its client goes
/// away: a word of [`crate::exec::OnDisconnect`]. `kill` needs a tag in the start.
pub const ON_DISCONNECT: &str = "x-coldframe-on-disconnect";

impl Client {
    /// Sends one request to the API inside a sandbox.
    ///
    /// Only path, query, headers and body of `request` count. There is no time
    /// limit: a process may be quiet for as long as it likes. Dropping the
    /// answer's body ends the exchange.
    pub async fn guest<B>(
        &self,
        id: &SandboxId,
        request: http::Request<B>,
    ) -> Result<http::Response<Body>, ClientError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let outgoing = self
            .request_raw(parts.method, &format!("sandboxes/{id}/guest{path}"))
            .ok_or_else(|| ClientError::Protocol("the path cannot stand in a URL".to_owned()))?
            .headers(parts.headers);
        let outgoing = if body.is_end_stream() {
            outgoing
        } else {
            outgoing.body(reqwest::Body::wrap_stream(BodyDataStream::new(body).map_err(Into::into)))
        };
        let response = http::Response::from(self.exchange(outgoing).await?);
        if response.headers().contains_key(REFUSED_BY_SERVER) {
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_PROBLEM).collect().await;
            let body = body.map_err(|_| {
                ClientError::Protocol(format!(
                    "{status} with an unreadable {}",
                    problem::CONTENT_TYPE
                ))
            })?;
            return Err(refusal(status, &body.to_bytes()));
        }
        Ok(response.map(|body| body.map_err(io::Error::other).boxed_unsync()))
    }
}
