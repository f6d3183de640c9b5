//! The one place where an error becomes a status and a problem.
//!
//! A cause is logged here, once, and never sent: the answer holds the code and
//! the sentence that its maker meant for the client.

use std::fmt;

use api::{
    guest::REFUSED_BY_SERVER,
    problem::{self, Problem},
};
use axum::response::{IntoResponse, Response};
use guest_protocol::connect::{self, Code};
use http::{HeaderValue, StatusCode, header};

/// The longest text of a guest that is passed on in an error.
const MAX_GUEST_TEXT: usize = 1024;

/// An error on its way to the client.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ApiError {
    /// An error that the client caused and can mend.
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), source: None }
    }

    /// 400: a part of the request makes no sense.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", detail)
    }

    /// 400: a field makes no sense, for the reason its own type gives.
    pub(crate) fn field(name: &'static str, reason: impl fmt::Display) -> Self {
        Self::invalid(format!("{name}: {reason}"))
    }

    /// 404 for a path or a noun. The same for what does not exist and for what
    /// belongs to somebody else.
    pub(crate) fn not_found(noun: &'static str) -> Self {
        control::error::Error::NotFound { noun }.into()
    }

    /// 413
    pub(crate) fn too_large(limit: usize) -> Self {
        let detail = format!("the body is larger than {limit} bytes, which is the limit here");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    }

    /// 415
    pub(crate) fn content_type(expected: &str) -> Self {
        let detail = format!("the content-type must be {expected}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
    }

    /// 408: the client stopped sending.
    pub(crate) fn slow_client() -> Self {
        let detail = "the request did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail)
    }

    /// 504: the work takes longer than a request may.
    pub(crate) fn timeout() -> Self {
        let detail = "the request took too long; look at the state before repeating it";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", detail)
    }

    /// 503: all requests together hold as much memory as they may.
    pub(crate) fn busy() -> Self {
        let detail = "the server is busy with large requests; try again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    }

    /// 503: all places for connections with a good token are taken.
    pub(crate) fn crowded() -> Self {
        let detail = "the server has as many connections as it may; try again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    }

    /// 503: the server is going away.
    pub(crate) fn stopping() -> Self {
        let detail = "the server is shutting down; try again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", detail)
    }

    /// 502: the guest's side of a call broke.
    pub(crate) fn guest_broke(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let detail = "the sandbox did not give a usable answer; see its state and console";
        let mut error = Self::new(StatusCode::BAD_GATEWAY, "guest_unreachable", detail);
        error.source = Some(source.into());
        error
    }

    /// 504: the guest does nothing.
    pub(crate) fn guest_stalled() -> Self {
        let detail = "the sandbox did not answer in time";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "guest_timeout", detail)
    }

    /// What the guest answered to a call that failed, in our codes. Its text is
    /// passed on, shortened: the owner of the sandbox is the one who asked.
    pub(crate) fn guest_refused(error: &connect::Error) -> Self {
        let (status, code) = match error.code {
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
                (StatusCode::BAD_REQUEST, "invalid_request")
            }
            Code::NotFound => (StatusCode::NOT_FOUND, "path_not_found"),
            Code::AlreadyExists => (StatusCode::CONFLICT, "already_exists"),
            Code::PermissionDenied => (StatusCode::FORBIDDEN, "permission_denied"),
            Code::Unauthenticated => (StatusCode::BAD_REQUEST, "unknown_user"),
            Code::ResourceExhausted => (StatusCode::INSUFFICIENT_STORAGE, "sandbox_exhausted"),
            Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "guest_timeout"),
            Code::Canceled
            | Code::Unknown
            | Code::Aborted
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => (StatusCode::BAD_GATEWAY, "guest_error"),
        };
        let text: String = error.message.chars().take(MAX_GUEST_TEXT).collect();
        let detail = if text.is_empty() { "the sandbox refused the call".to_owned() } else { text };
        Self::new(status, code, detail)
    }

    /// The status.
    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for ApiError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<control::error::Error> for ApiError {
    fn from(error: control::error::Error) -> Self {
        use control::error::Error;
        let status = match &error {
            Error::Unauthenticated => StatusCode::UNAUTHORIZED,
            Error::InvalidRequest { .. } | Error::ModeUnavailable { .. } => StatusCode::BAD_REQUEST,
            Error::Forbidden { .. } => StatusCode::FORBIDDEN,
            Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::ImageRefused { .. } | Error::Conflict { .. } => StatusCode::CONFLICT,
            Error::QuotaExceeded { .. }
            | Error::KeptExceeded { .. }
            | Error::VolumesFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::Gone { .. } => StatusCode::GONE,
            Error::StartFailed { .. }
            | Error::CaptureFailed { .. }
            | Error::ResumeFailed { .. } => StatusCode::BAD_GATEWAY,
            Error::BuildFailed { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Error::HostFull { .. }
            | Error::Unavailable { .. }
            | Error::NoGateway { .. }
            | Error::Isolation { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Error::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let (code, detail) = (error.code(), error.to_string());
        let source = std::error::Error::source(&error).is_some().then(|| error.into());
        Self { status, code, detail, source }
    }
}

impl ApiError {
    /// What the client is told, where the status was sent before.
    pub(crate) fn into_problem(self) -> Problem {
        self.log();
        Problem::new(self.status, self.code, self.detail)
    }

    fn log(&self) {
        if let Some(source) = &self.source {
            let causes = chain(source.as_ref());
            if self.status == StatusCode::INTERNAL_SERVER_ERROR {
                tracing::error!(code = self.code, causes, "a request failed");
            } else {
                tracing::warn!(code = self.code, causes, "a request was refused");
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.log();
        let problem = Problem::new(self.status, self.code, self.detail);
        // Two words and three texts always serialise.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE));
        headers.insert(REFUSED_BY_SERVER, HeaderValue::from_static("1"));
        if let Some(seconds) = retry_after(self.status, self.code) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"coldframe\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// After how many seconds it is worth to ask again, where that may help.
fn retry_after(status: StatusCode, code: &str) -> Option<&'static str> {
    match (status, code) {
        // A moment, in which answers leave.
        (StatusCode::SERVICE_UNAVAILABLE, "busy") => Some("1"),
        // Until a sandbox ends, or a server is there again.
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, _) => Some("10"),
        _ => None,
    }
}

/// An error and its causes in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_not_sent() {
        let source = std::io::Error::other("/var/lib/coldframe/state.db is locked");
        let error = ApiError::from(control::error::Error::Internal { source: source.into() });
        assert_eq!(error.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!error.to_string().contains("state.db"), "{error}");
        assert!(chain(&error).contains("state.db"));
    }

    #[test]
    fn a_guests_text_is_bounded() {
        let error = connect::Error::new(Code::NotFound, "x".repeat(1 << 20));
        assert_eq!(ApiError::guest_refused(&error).to_string().len(), MAX_GUEST_TEXT);
    }
}
