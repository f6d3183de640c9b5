//! How a refusal looks to an HTTP client (U18).

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};

use super::body::Body;
use crate::code::Refusal;

/// A problem document.
pub(crate) fn problem(refusal: &Refusal) -> Response<Body> {
    let body = Full::new(Bytes::from(document(refusal))).map_err(|never| match never {});
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = status(refusal);
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The same as bytes of HTTP/1.1, for a client whose request was not read.
pub(crate) fn raw(refusal: &Refusal) -> Vec<u8> {
    let document = document(refusal);
    let status = status(refusal);
    let mut bytes = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        document.len(),
    )
    .into_bytes();
    bytes.extend_from_slice(&document);
    bytes
}

fn status(refusal: &Refusal) -> StatusCode {
    StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::BAD_GATEWAY)
}

fn document(refusal: &Refusal) -> Vec<u8> {
    let status = status(refusal);
    let problem = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "code": refusal.code.as_str(),
        "detail": refusal.detail,
    });
    problem.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    /// U18: a stable code and a sentence, in both forms.
    #[tokio::test]
    async fn a_refusal_says_the_code_and_a_sentence() {
        let refusal = Refusal::new(Code::PolicyDenied, "allow", "a.test is not on the list");
        let response = problem(&refusal);
        assert_eq!(response.status(), 403);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(read["code"], "policy_denied");
        assert_eq!(read["detail"], "a.test is not on the list");
        let raw = String::from_utf8(raw(&refusal)).unwrap();
        assert!(raw.starts_with("HTTP/1.1 403 Forbidden\r\n"));
        assert!(raw.ends_with(std::str::from_utf8(&body).unwrap()));
    }
}
