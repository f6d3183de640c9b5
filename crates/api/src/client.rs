//! A typed client of the server.
//!
//! It does what it is told and nothing behind the caller's back: no redirects
//! are followed (a token must not travel to where an answer points), no proxy of
//! the environment is used (what a sandbox prints is nobody else's business; a
//! server behind a proxy is reached through a tunnel), nothing is retried.
//!
//! Invariants:
//!
//! - The token is in one header that is marked sensitive and prints nowhere.
//! - Every call but a stream ends within a time that the call itself knows.
//! - An answer is read up to [`MAX_ANSWER`] bytes, so that a wrong address
//!   cannot fill memory.

use std::{fmt, io, time::Duration};

use bytes::{Bytes, BytesMut};
use domain::{
    id::{CheckpointId, SandboxId, SessionId, TokenId},
    secret::Secret,
};
use futures::StreamExt as _;
use http::{Method, StatusCode, header};
use reqwest::Url;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    audit::{AuditPage, ListAudit},
    egress::{EgressExplanation, EgressPage, ExplainEgress, ListEgress, SetEgress},
    exec::{ExecRequest, ExecResult},
    files::{Directory, FileQuery, Written},
    images::Image,
    limits::Limits,
    metrics::Metrics,
    problem::{self, Problem},
    sandboxes::{
        Copies, CreateSandbox, Fork, ListSandboxes, Resume, Sandbox, SandboxPage, SetTimeout,
    },
    sessions::{CreateSession, Session},
    snapshots::{CreateSnapshot, ListSnapshots, Snapshot, SnapshotPage},
    tokens::{CreateToken, NewToken, Token},
    volumes::{Checkpoint, CreateVolume, Mount, Volume},
};

/// The largest JSON answer that is read. Two outputs of 8 MiB in base64 fit.
pub const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next call. Shorter than the server
/// keeps it, so that a call is not sent into one that is being closed.
const IDLE: Duration = Duration::from_secs(5);
/// How long an ordinary answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a sandbox may take to start; the first of its kind boots a machine.
const CREATE: Duration = Duration::from_secs(300);

/// How long the server may work on a volume before it answers with its state.
const VOLUME: Duration = Duration::from_secs(120);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server understood and said no.
    #[error("{0}")]
    Refused(Problem),
    /// The token is missing, wrong or revoked.
    #[error("the server does not accept the token")]
    Unauthorized(Problem),
    /// Nothing answered, or not in time.
    #[error("no answer from {address}")]
    Unreachable {
        /// Scheme, host and port.
        address: String,
        /// Why.
        source: reqwest::Error,
    },
    /// Something answered that is not this server.
    #[error("unexpected answer: {0}")]
    Protocol(String),
}

/// A text that is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a server address; use http://host:port or https://host")]
pub struct InvalidAddress(pub String);

/// A client of one server with one token.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    authorization: header::HeaderValue,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at `address` that presents `token`.
    ///
    /// # Errors
    /// The address is not an HTTP URL, or the token cannot stand in a header.
    pub fn new(address: &str, token: &Secret) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(address.to_owned());
        let mut base = Url::parse(address).map_err(|_| invalid())?;
        let plain = matches!(base.scheme(), "http" | "https")
            && base.has_host()
            && base.username().is_empty()
            && base.password().is_none()
            && base.query().is_none()
            && base.fragment().is_none();
        if !plain {
            return Err(invalid());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut authorization = header::HeaderValue::try_from(format!("Bearer {}", token.expose()))
            .map_err(|_| InvalidAddress("the token holds characters no token has".to_owned()))?;
        authorization.set_sensitive(true);
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .http1_only()
            .user_agent(concat!("coldframe/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|_| invalid())?;
        Ok(Self { http, base, authorization })
    }

    /// The address this client talks to.
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Creates a sandbox; it runs when this returns.
    pub async fn create_sandbox(&self, create: &CreateSandbox) -> Result<Sandbox, ClientError> {
        let request = self.request(Method::POST, &["sandboxes"]).json(create).timeout(CREATE);
        self.answer(request).await
    }

    /// A page of sandboxes.
    pub async fn list_sandboxes(&self, query: &ListSandboxes) -> Result<SandboxPage, ClientError> {
        self.get(&["sandboxes"], query).await
    }

    /// One sandbox.
    pub async fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, ClientError> {
        self.get(&["sandboxes", id.as_str()], &()).await
    }

    /// Ends a sandbox; it is gone when this returns.
    pub async fn terminate(&self, id: &SandboxId) -> Result<(), ClientError> {
        self.empty(self.request(Method::DELETE, &["sandboxes", id.as_str()]).timeout(ANSWER)).await
    }

    /// Sets a new time limit, counted from now.
    pub async fn set_timeout(&self, id: &SandboxId, seconds: u32) -> Result<Sandbox, ClientError> {
        let body = SetTimeout { timeout_seconds: seconds };
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "timeout"]);
        self.answer(request.json(&body).timeout(ANSWER)).await
    }

    /// Pauses a sandbox; its machine is gone when this returns.
    pub async fn pause(&self, id: &SandboxId) -> Result<Sandbox, ClientError> {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "pause"]);
        self.answer(request.timeout(CREATE)).await
    }

    /// Resumes a paused sandbox; it runs when this returns.
    pub async fn resume(&self, id: &SandboxId, resume: &Resume) -> Result<Sandbox, ClientError> {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "resume"]);
        self.answer(request.json(resume).timeout(CREATE)).await
    }

    /// Copies a running sandbox; the copies run when this returns.
    pub async fn fork(&self, id: &SandboxId, fork: &Fork) -> Result<Copies, ClientError> {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "fork"]);
        self.answer(request.json(fork).timeout(CREATE)).await
    }

    /// Keeps what a running sandbox is under a name.
    pub async fn create_snapshot(
        &self,
        id: &SandboxId,
        create: &CreateSnapshot,
    ) -> Result<Snapshot, ClientError> {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "snapshots"]);
        self.answer(request.json(create).timeout(CREATE)).await
    }

    /// A page of snapshots.
    pub async fn list_snapshots(&self, query: &ListSnapshots) -> Result<SnapshotPage, ClientError> {
        self.get(&["snapshots"], query).await
    }

    /// One snapshot, by name or id.
    pub async fn snapshot(&self, which: &str) -> Result<Snapshot, ClientError> {
        self.get(&["snapshots", which], &()).await
    }

    /// Removes a snapshot, by name or id.
    pub async fn delete_snapshot(&self, which: &str) -> Result<(), ClientError> {
        self.empty(self.request(Method::DELETE, &["snapshots", which]).timeout(ANSWER)).await
    }

    /// Runs a command to its end.
    pub async fn exec(
        &self,
        id: &SandboxId,
        exec: &ExecRequest,
    ) -> Result<ExecResult, ClientError> {
        let seconds = u64::from(exec.timeout_seconds.unwrap_or(60));
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "exec"]);
        self.answer(request.json(exec).timeout(ANSWER + Duration::from_secs(seconds))).await
    }

    /// The content of a file, as it arrives. Of a directory, the JSON of
    /// [`Directory`]: use [`Client::list_directory`] for one.
    pub async fn read_file(
        &self,
        id: &SandboxId,
        file: &FileQuery,
    ) -> Result<http::Response<reqwest::Body>, ClientError> {
        let request = self.request(Method::GET, &["sandboxes", id.as_str(), "files"]).query(file);
        Ok(self.send(request).await?.into())
    }

    /// What is in a directory.
    pub async fn list_directory(
        &self,
        id: &SandboxId,
        directory: &FileQuery,
    ) -> Result<Directory, ClientError> {
        self.get(&["sandboxes", id.as_str(), "files"], directory).await
    }

    /// Writes a file, creating its parents.
    pub async fn write_file<B>(
        &self,
        id: &SandboxId,
        file: &FileQuery,
        content: B,
    ) -> Result<Written, ClientError>
    where
        B: Into<reqwest::Body>,
    {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "files"]);
        let request = request.query(file).header(header::CONTENT_TYPE, "application/octet-stream");
        self.answer(request.body(content)).await
    }

    /// Removes a file or a directory with what is in it.
    pub async fn remove_file(&self, id: &SandboxId, file: &FileQuery) -> Result<(), ClientError> {
        let request = self.request(Method::DELETE, &["sandboxes", id.as_str(), "files"]);
        self.empty(request.query(file).timeout(ANSWER)).await
    }

    /// The last output of a sandbox's console.
    pub async fn console(&self, id: &SandboxId) -> Result<Bytes, ClientError> {
        let request = self.request(Method::GET, &["sandboxes", id.as_str(), "console"]);
        self.read(self.send(request.timeout(ANSWER)).await?).await
    }

    /// How busy a sandbox is.
    pub async fn metrics(&self, id: &SandboxId) -> Result<Metrics, ClientError> {
        self.get(&["sandboxes", id.as_str(), "metrics"], &()).await
    }

    /// The images.
    pub async fn list_images(&self) -> Result<Vec<Image>, ClientError> {
        self.get(&["images"], &()).await
    }

    /// One image.
    pub async fn image(&self, name: &str) -> Result<Image, ClientError> {
        self.get(&["images", name], &()).await
    }

    /// What the installation allows.
    pub async fn limits(&self) -> Result<Limits, ClientError> {
        self.get(&["limits"], &()).await
    }

    /// Makes a token.
    pub async fn create_token(&self, create: &CreateToken) -> Result<NewToken, ClientError> {
        let request = self.request(Method::POST, &["tokens"]);
        self.answer(request.json(create).timeout(ANSWER)).await
    }

    /// The tokens, without their texts.
    pub async fn list_tokens(&self) -> Result<Vec<Token>, ClientError> {
        self.get(&["tokens"], &()).await
    }

    /// Revokes a token at once.
    pub async fn revoke_token(&self, id: &TokenId) -> Result<(), ClientError> {
        self.empty(self.request(Method::DELETE, &["tokens", id.as_str()]).timeout(ANSWER)).await
    }

    /// Sets what a sandbox may reach.
    pub async fn set_egress(
        &self,
        id: &SandboxId,
        set: &SetEgress,
    ) -> Result<Sandbox, ClientError> {
        let request = self.request(Method::PUT, &["sandboxes", id.as_str(), "egress"]);
        self.answer(request.json(set).timeout(ANSWER)).await
    }

    /// Says what would happen to a request.
    pub async fn explain_egress(
        &self,
        explain: &ExplainEgress,
    ) -> Result<EgressExplanation, ClientError> {
        let request = self.request(Method::POST, &["egress", "explain"]);
        self.answer(request.json(explain).timeout(ANSWER)).await
    }

    /// A page of what the gateway decided.
    pub async fn list_egress(&self, query: &ListEgress) -> Result<EgressPage, ClientError> {
        self.get(&["egress", "log"], query).await
    }

    /// What the gateway decides, as it does: a JSON object a line.
    pub async fn follow_egress(
        &self,
        query: &ListEgress,
    ) -> Result<http::Response<reqwest::Body>, ClientError> {
        let query = ListEgress { follow: Some(true), ..query.clone() };
        Ok(self.send(self.request(Method::GET, &["egress", "log"]).query(&query)).await?.into())
    }

    /// Makes a session.
    pub async fn create_session(
        &self,
        id: &SandboxId,
        create: &CreateSession,
    ) -> Result<Session, ClientError> {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "sessions"]);
        self.answer(request.json(create).timeout(ANSWER)).await
    }

    /// The sessions of a sandbox.
    pub async fn list_sessions(&self, id: &SandboxId) -> Result<Vec<Session>, ClientError> {
        self.get(&["sandboxes", id.as_str(), "sessions"], &()).await
    }

    /// Ends a session.
    pub async fn end_session(
        &self,
        id: &SandboxId,
        session: &SessionId,
    ) -> Result<(), ClientError> {
        let path = ["sandboxes", id.as_str(), "sessions", session.as_str()];
        self.empty(self.request(Method::DELETE, &path).timeout(ANSWER)).await
    }

    /// A page of the audit log.
    pub async fn list_audit(&self, query: &ListAudit) -> Result<AuditPage, ClientError> {
        self.get(&["audit"], query).await
    }

    /// Makes a volume.
    pub async fn create_volume(&self, create: &CreateVolume) -> Result<Volume, ClientError> {
        self.answer(self.request(Method::POST, &["volumes"]).json(create).timeout(VOLUME)).await
    }

    /// The volumes by name.
    pub async fn list_volumes(&self) -> Result<Vec<Volume>, ClientError> {
        self.get(&["volumes"], &()).await
    }

    /// One volume, by its name or id.
    pub async fn volume(&self, volume: &str) -> Result<Volume, ClientError> {
        self.get(&["volumes", volume], &()).await
    }

    /// Deletes a volume with its checkpoints.
    pub async fn delete_volume(&self, volume: &str) -> Result<(), ClientError> {
        self.empty(self.request(Method::DELETE, &["volumes", volume]).timeout(VOLUME)).await
    }

    /// Attaches a volume to a running sandbox.
    pub async fn attach_volume(
        &self,
        id: &SandboxId,
        mount: &Mount,
    ) -> Result<Volume, ClientError> {
        let request = self.request(Method::POST, &["sandboxes", id.as_str(), "volumes"]);
        self.answer(request.json(mount).timeout(VOLUME)).await
    }

    /// Takes a volume out of a running sandbox.
    pub async fn detach_volume(&self, id: &SandboxId, volume: &str) -> Result<(), ClientError> {
        let path = ["sandboxes", id.as_str(), "volumes", volume];
        self.empty(self.request(Method::DELETE, &path).timeout(VOLUME)).await
    }

    /// Makes a checkpoint of a volume.
    pub async fn create_checkpoint(&self, volume: &str) -> Result<Checkpoint, ClientError> {
        let path = ["volumes", volume, "checkpoints"];
        self.answer(self.request(Method::POST, &path).timeout(VOLUME)).await
    }

    /// The checkpoints of a volume, newest first.
    pub async fn list_checkpoints(&self, volume: &str) -> Result<Vec<Checkpoint>, ClientError> {
        self.get(&["volumes", volume, "checkpoints"], &()).await
    }

    /// Deletes a checkpoint.
    pub async fn delete_checkpoint(&self, id: &CheckpointId) -> Result<(), ClientError> {
        self.empty(self.request(Method::DELETE, &["checkpoints", id.as_str()]).timeout(VOLUME))
            .await
    }

    /// A request to `/v1/` and the given segments, each escaped.
    pub(crate) fn request(&self, method: Method, segments: &[&str]) -> reqwest::RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("v1").extend(segments);
        }
        self.authorized(method, url)
    }

    /// A request to a path below `/v1/` that is already escaped. None for one
    /// with dot segments: a URL resolves them, so it would go somewhere else.
    pub(crate) fn request_raw(
        &self,
        method: Method,
        rest: &str,
    ) -> Option<reqwest::RequestBuilder> {
        let text = format!("{}v1/{rest}", self.base);
        let url = Url::parse(&text).ok().filter(|url| url.as_str() == text)?;
        Some(self.authorized(method, url))
    }

    fn authorized(&self, method: Method, url: Url) -> reqwest::RequestBuilder {
        self.http.request(method, url).header(header::AUTHORIZATION, self.authorization.clone())
    }

    pub(crate) async fn get<Q: Serialize, T: DeserializeOwned>(
        &self,
        segments: &[&str],
        query: &Q,
    ) -> Result<T, ClientError> {
        self.answer(self.request(Method::GET, segments).query(query).timeout(ANSWER)).await
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<T, ClientError> {
        let body = self.read(self.send(request).await?).await?;
        serde_json::from_slice(&body).map_err(|error| {
            ClientError::Protocol(format!("the body is not what it should be: {error}"))
        })
    }

    pub(crate) async fn empty(&self, request: reqwest::RequestBuilder) -> Result<(), ClientError> {
        self.send(request).await.map(drop)
    }

    /// Sends a request; an answer that is not a success becomes the error it holds.
    pub(crate) async fn send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ClientError> {
        let response = self.exchange(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.read(response).await?;
        Err(refusal(status, &body))
    }

    /// Sends a request and returns whatever answer came.
    pub(crate) async fn exchange(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, ClientError> {
        request.send().await.map_err(|source| self.unreachable(source))
    }

    async fn read(&self, response: reqwest::Response) -> Result<Bytes, ClientError> {
        let mut body = BytesMut::new();
        let mut parts = response.bytes_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|source| self.unreachable(source))?;
            if body.len() + part.len() > MAX_ANSWER {
                return Err(ClientError::Protocol(format!("an answer above {MAX_ANSWER} bytes")));
            }
            body.extend_from_slice(&part);
        }
        Ok(body.freeze())
    }

    pub(crate) fn unreachable(&self, source: reqwest::Error) -> ClientError {
        // The address of the error may hold a query with a path; ours does not.
        let address = self.base.origin().ascii_serialization();
        ClientError::Unreachable { address, source: source.without_url() }
    }
}

/// What an unsuccessful answer means.
pub(crate) fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if status == StatusCode::UNAUTHORIZED => ClientError::Unauthorized(problem),
        Ok(problem) => ClientError::Refused(problem),
        Err(_) => {
            ClientError::Protocol(format!("status {status} without a {}", problem::CONTENT_TYPE))
        }
    }
}

impl From<ClientError> for io::Error {
    fn from(error: ClientError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Secret {
        Secret::new("coldframe_hunter2".to_owned())
    }

    #[test]
    fn only_a_plain_http_address_is_accepted() {
        for address in ["", "localhost:7070", "ftp://a", "http://", "http://a:b@c", "http://a/?q"] {
            assert!(Client::new(address, &token()).is_err(), "{address:?}");
        }
        let client = Client::new("http://127.0.0.1:7070", &token()).unwrap();
        assert_eq!(client.address(), "http://127.0.0.1:7070");
    }

    /// U16
    #[test]
    fn the_token_does_not_print() {
        let client = Client::new("https://example.org/coldframe", &token()).unwrap();
        let request = client.request(Method::GET, &["images", "../x y"]).build().unwrap();
        assert!(!format!("{client:?}{request:?}").contains("hunter2"));
        assert_eq!(request.url().as_str(), "https://example.org/coldframe/v1/images/..%2Fx%20y");
    }

    #[test]
    fn a_raw_path_goes_where_it_says_or_nowhere() {
        let client = Client::new("http://127.0.0.1:7070", &token()).unwrap();
        assert!(client.request_raw(Method::GET, "sandboxes/x/guest/files?path=%2Fa").is_some());
        assert!(client.request_raw(Method::GET, "sandboxes/x/guest/../exec").is_none());
    }

    #[test]
    fn a_foreign_answer_is_not_taken_for_a_refusal() {
        let error = refusal(StatusCode::BAD_GATEWAY, b"<html>");
        assert!(matches!(error, ClientError::Protocol(_)), "{error}");
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "x");
        let body = serde_json::to_vec(&problem).unwrap();
        assert!(matches!(refusal(StatusCode::UNAUTHORIZED, &body), ClientError::Unauthorized(_)));
    }
}
