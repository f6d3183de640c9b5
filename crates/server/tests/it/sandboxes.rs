//! A sandbox's life through the typed client.

use api::{
    client::ClientError,
    sandboxes::{CreateSandbox, ListSandboxes},
};
use testkit::app::App;

pub(crate) fn base() -> CreateSandbox {
    CreateSandbox { template: "base".into(), ..Default::default() }
}

#[track_caller]
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
    match result {
        Err(ClientError::Refused(problem) | ClientError::Unauthorized(problem)) => problem.code,
        other => panic!("not a refusal: {other:?}"),
    }
}

/// S65, S68, S71-S74, U34
#[tokio::test]
async fn a_sandbox_lives_and_ends() {
    let app = App::start().await;
    let client = app.sandboxes();
    let metadata = [("purpose".to_owned(), "test".to_owned())];
    let create = CreateSandbox { metadata: metadata.into(), ..base() };
    let made = client.create_sandbox(&create).await.unwrap();
    assert_eq!((made.state.as_str(), made.size.as_deref()), ("running", Some("small")));
    assert_eq!((made.cpus, made.memory_mb, made.network.as_str()), (1, 512, "off"));
    assert_eq!(made.metadata["purpose"], "test");
    assert!(made.started_at.is_some() && made.expires_at > made.started_at);

    let listed = client.list_sandboxes(&ListSandboxes::default()).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert_eq!(client.sandbox(&made.id).await.unwrap().id, made.id);
    let later = client.set_timeout(&made.id, 3600).await.unwrap();
    assert!(later.expires_at > made.expires_at);

    client.terminate(&made.id).await.unwrap();
    client.terminate(&made.id).await.unwrap();
    let ended = client.sandbox(&made.id).await.unwrap();
    assert_eq!(ended.state, "terminated");
    assert_eq!(ended.ending.unwrap().code, "requested");
    app.stop().await;
}

/// S65, S66, S9: what cannot be is refused with a code and a sentence that
/// names the part.
#[tokio::test]
async fn a_create_that_makes_no_sense_is_refused() {
    let app = App::start().await;
    let token = app.tokens.sandboxes.expose();
    let http = reqwest::Client::new();
    for (json, status, code, part) in [
        (r#"{}"#, 400, "invalid_request", "template"),
        (r#"{"template":"none"}"#, 400, "invalid_request", "template"),
        (r#"{"template":"../base"}"#, 400, "invalid_request", "template"),
        (r#"{"template":"base","size":"huge"}"#, 400, "invalid_request", "size"),
        (r#"{"template":"base","size":"small","cpus":1}"#, 400, "invalid_request", "size"),
        (r#"{"template":"base","cpus":1,"memory_mb":9000000}"#, 400, "invalid_request", "memory"),
        (r#"{"template":"base","timeout_seconds":9}"#, 400, "invalid_request", "timeout"),
        (r#"{"template":"base","timeout_seconds":3601}"#, 400, "invalid_request", "timeout"),
        (r#"{"template":"base","timeout":60}"#, 400, "invalid_request", "timeout"),
        (r#"{"template":"base","network":"open"}"#, 400, "mode_unavailable", "network"),
        (r#"{"template":"base","network":"on"}"#, 400, "invalid_request", "network"),
        (r#"{"template":"base","env":{"A=B":"x"}}"#, 400, "invalid_request", "env"),
        (r#"{"template":"base","region":"mars!"}"#, 400, "invalid_request", "region"),
        (r#"{"template":"base""#, 400, "invalid_request", "line 1"),
        (r#"[]"#, 400, "invalid_request", ""),
    ] {
        let request = http.post(app.url("/v1/sandboxes")).bearer_auth(token).body(json);
        let request = request.header("content-type", "application/json");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{json}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let problem: api::problem::Problem =
            serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(problem.code, code, "{json}: {problem}");
        assert!(problem.detail.contains(part), "{json}: {problem}");
    }
    app.stop().await;
}

/// A start that fails is a clear answer, and its reason stays readable.
#[tokio::test]
async fn a_start_that_fails_says_why() {
    let app = App::start().await;
    app.backend.fail_create(Some("no room"));
    assert_eq!(code(app.sandboxes().create_sandbox(&base()).await), "start_failed");
    let listed = app.sandboxes().list_sandboxes(&ListSandboxes::default()).await.unwrap();
    assert_eq!(listed.items[0].state, "failed");
    assert_eq!(listed.items[0].ending.as_ref().unwrap().code, "start_failed");
    app.stop().await;
}

#[tokio::test]
async fn a_repeated_create_with_one_key_makes_one_sandbox() {
    let app = App::start().await;
    let http = reqwest::Client::new();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let request =
            http.post(app.url("/v1/sandboxes")).bearer_auth(app.tokens.sandboxes.expose());
        let answer = request.header("idempotency-key", "k1").json(&base()).send().await.unwrap();
        assert_eq!(answer.status(), 201);
        ids.push(answer.json::<api::sandboxes::Sandbox>().await.unwrap().id);
    }
    assert_eq!(ids[0], ids[1]);
    app.stop().await;
}
