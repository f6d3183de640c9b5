//! Requests that are too large, too slow, of the wrong type or to the wrong name.

use std::time::Duration;

use server::Options;
use testkit::app::App;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::raw;

async fn post(app: &App, path: &str, kind: Option<&str>, body: Vec<u8>) -> (u16, String, String) {
    let mut request = reqwest::Client::new().post(app.url(path)).body(body);
    if let Some(kind) = kind {
        request = request.header("content-type", kind);
    }
    let answer = request.bearer_auth(app.tokens.sandboxes.expose()).send().await.unwrap();
    let status = answer.status().as_u16();
    let problem: api::problem::Problem =
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    (status, problem.code, problem.detail)
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_with_the_limit() {
    let app = App::start().await;
    let json = Some("application/json");
    let (status, code, detail) = post(&app, "/v1/sandboxes", json, vec![b' '; 3 << 20]).await;
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    assert!(detail.contains("1048576"), "{detail}");
    app.stop().await;
}

/// A client that is busy sending when it is refused reads the answer; a reset
/// would take it away.
#[tokio::test]
async fn a_refusal_in_the_middle_of_an_upload_arrives() {
    let app = App::start().await;
    let path = format!("/v1/sandboxes/{}/files?path=/x", testkit::fixtures::sandbox_id());
    let kind = Some("application/octet-stream");
    for _ in 0..5 {
        let (status, code, _) = post(&app, &path, kind, vec![0; 20 << 20]).await;
        assert_eq!((status, code.as_str()), (404, "not_found"));
    }
    app.stop().await;
}

#[tokio::test]
async fn a_wrong_content_type_is_refused() {
    let app = App::start().await;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        let (status, code, _) = post(&app, "/v1/sandboxes", kind, b"{}".to_vec()).await;
        assert_eq!((status, code.as_str()), (415, "unsupported_media_type"), "{kind:?}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_wrong_method_and_a_wrong_path_are_problems() {
    let app = App::start().await;
    let (status, code, _) = post(&app, "/v1/limits", None, Vec::new()).await;
    assert_eq!((status, code.as_str()), (405, "method_not_allowed"));
    let (status, code, _) = post(&app, "/v1/nothing", None, Vec::new()).await;
    assert_eq!((status, code.as_str()), (404, "not_found"));
    app.stop().await;
}

/// A header that does not end, and one that is too large, cost a connection for
/// a bounded time.
#[tokio::test]
async fn a_slow_or_large_header_is_cut_off() {
    let options = Options { header_timeout: Duration::from_millis(200), ..Options::default() };
    let app = App::start_with(options).await;
    let mut slow = TcpStream::connect(app.address).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await.unwrap();
    let mut rest = Vec::new();
    drop(slow.read_to_end(&mut rest).await);
    assert!(!String::from_utf8_lossy(&rest).contains("200"));

    let large = raw::get("/healthz", &format!("host: localhost\r\nx: {}\r\n", "a".repeat(40_000)));
    let answer = raw::exchange(app.address, &large).await;
    assert!([0, 431].contains(&raw::status(&answer)), "{answer}");
    let many = raw::get("/healthz", &format!("host: localhost\r\n{}", "x: 1\r\n".repeat(200)));
    let answer = raw::exchange(app.address, &many).await;
    assert!([0, 431].contains(&raw::status(&answer)), "{answer}");
    // Everybody else is served.
    let answer = raw::exchange(app.address, &raw::get("/healthz", "host: localhost\r\n")).await;
    assert_eq!(raw::status(&answer), 200);
    app.stop().await;
}

/// DNS rebinding: a page's name is not ours.
#[tokio::test]
async fn a_foreign_host_name_is_refused() {
    let app = App::start().await;
    for (headers, status) in [
        ("host: localhost:7070\r\n", 200),
        ("host: 127.0.0.1\r\n", 200),
        ("host: evil.example\r\n", 403),
        ("host: localhost\r\nhost: evil.example\r\n", 403),
        ("", 403),
    ] {
        let answer = raw::exchange(app.address, &raw::get("/healthz", headers)).await;
        assert_eq!(raw::status(&answer), status, "{headers:?}: {answer}");
    }
    let absolute = raw::get("http://evil.example/healthz", "host: localhost\r\n");
    assert_eq!(raw::status(&raw::exchange(app.address, &absolute).await), 403);
    app.stop().await;
}

/// Every answer protects a browser that happens to see it, and allows no other
/// origin.
#[tokio::test]
async fn every_answer_has_its_protection() {
    let app = App::start().await;
    for path in ["/healthz", "/v1/sandboxes", "/nothing"] {
        let request = reqwest::Client::new().get(app.url(path)).header("origin", "http://evil");
        let answer = request.send().await.unwrap();
        let headers = answer.headers();
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-store");
        assert!(headers["x-request-id"].to_str().unwrap().starts_with("req_"));
        assert!(headers["content-security-policy"].to_str().unwrap().contains("'none'"));
        assert!(!headers.contains_key("access-control-allow-origin"));
    }
    app.stop().await;
}
