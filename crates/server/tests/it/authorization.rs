//! Who may do what, driven from `docs/reference/authz.txt`.
//!
//! The table is generated from the routes, so a route that is missing here is
//! missing from the server. Each is tried without a token, with a bad one, with
//! the wrong scope and by another organisation.

use std::sync::OnceLock;

use api::tokens::CreateToken;
use domain::{
    id::{CheckpointId, SandboxId, SessionId, TokenId, VolumeId},
    scope::Scope,
    token::Token,
};
use reqwest::{Method, RequestBuilder, Response};
use testkit::{app::App, fixtures};

use crate::sandboxes::base;

/// A line of the table.
struct Endpoint {
    method: Method,
    path: String,
    scopes: Vec<Scope>,
}

fn endpoints() -> Vec<Endpoint> {
    let table = server::authorization_table();
    let lines = table.lines().map(|line| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("three words in a line");
        let (method, path, scopes) = (word(), word(), word());
        Endpoint {
            method: method.parse().unwrap(),
            path: path.to_owned(),
            scopes: scopes
                .split('|')
                .filter(|scope| *scope != "-")
                .map(|s| s.parse().unwrap())
                .collect(),
        }
    });
    lines.collect()
}

/// One client, because making one takes longer than a request. It keeps no
/// connection, which would belong to the runtime of another test.
fn client() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    let make = || reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    CLIENT.get_or_init(make)
}

/// A request that is right in all but its token.
fn request(app: &App, endpoint: &Endpoint, id: &SandboxId) -> RequestBuilder {
    let token = TokenId::from_random([8; 16]);
    let path = endpoint.path.replace("/tokens/{id}", &format!("/tokens/{token}"));
    let session = SessionId::from_random([8; 16]);
    let volume = VolumeId::from_random([8; 16]);
    let path = path.replace("/volumes/{id}", &format!("/volumes/{volume}"));
    let path = path.replace("{volume}", volume.as_str());
    let checkpoint = CheckpointId::from_random([8; 16]);
    let path = path.replace("/checkpoints/{id}", &format!("/checkpoints/{checkpoint}"));
    let path = path.replace("{id}", id.as_str()).replace("{name}", "base");
    let path = path.replace("{session}", session.as_str());
    let query = if path.ends_with("/files") { "?path=/x" } else { "" };
    let request = client().request(endpoint.method.clone(), app.url(&(path.clone() + query)));
    let json = |request: RequestBuilder, body: &str| {
        request.header("content-type", "application/json").body(body.to_owned())
    };
    let last = path.rsplit('/').next().unwrap_or_default();
    match (endpoint.method.as_str(), last) {
        ("POST", "sandboxes") => json(request, r#"{"template":"base"}"#),
        ("PUT", "egress") => json(request, r#"{"network":"off"}"#),
        ("POST", "explain") => json(request, r#"{"url":"https://good.test"}"#),
        ("POST", "sessions") => json(request, r#"{"uid":2000}"#),
        ("POST", "timeout") => json(request, r#"{"timeout_seconds":60}"#),
        ("POST", "pause") => request,
        ("POST", "resume" | "fork") => json(request, "{}"),
        ("POST", "snapshots") => json(request, r#"{"name":"x"}"#),
        ("POST", "exec") => json(request, r#"{"cmd":["echo"]}"#),
        ("POST", "volumes") if path == "/v1/volumes" => {
            json(request, r#"{"name":"x","size_mb":16}"#)
        }
        ("POST", "volumes") => json(request, r#"{"volume":"none"}"#),
        ("POST", "templates") => request
            .query(&[("name", "x")])
            .header("content-type", "application/x-tar")
            .body(crate::templates::context("FROM base")),
        ("POST", "tokens") => json(request, r#"{"scopes":["admin"]}"#),
        ("POST", "files") => request.header("content-type", "application/octet-stream").body("x"),
        ("POST", "Start" | "Connect" | "StreamInput" | "WatchDir") => {
            let message = br#"{"process":{"pid":1}}"#;
            let mut body = vec![0, 0, 0, 0, message.len() as u8];
            body.extend_from_slice(message);
            request.header("content-type", "application/connect+json").body(body)
        }
        ("POST", _) => json(request, r#"{"path":"/x","source":"/x","destination":"/y"}"#),
        _ => request,
    }
}

async fn send(request: RequestBuilder, token: Option<&Token>) -> Response {
    let request = match token {
        Some(token) => request.bearer_auth(token.expose()),
        None => request,
    };
    request.send().await.expect("an answer")
}

async fn problem(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap();
    let problem: api::problem::Problem = serde_json::from_slice(&body)
        .unwrap_or_else(|_| panic!("not a problem: {status} {body:?}"));
    (status, problem.code)
}

/// T-01, U14, S69
#[tokio::test]
async fn without_a_good_token_nothing_is_answered() {
    let app = App::start().await;
    let id = fixtures::sandbox_id();
    let unknown = Token::from_random([9; 32]);
    for endpoint in endpoints().iter().filter(|endpoint| !endpoint.scopes.is_empty()) {
        for token in [None, Some(&unknown)] {
            let answer = send(request(&app, endpoint, &id), token).await;
            assert_eq!(answer.headers()["www-authenticate"], "Bearer realm=\"coldframe\"");
            let answer = problem(answer).await;
            assert_eq!(answer, (401, "unauthenticated".into()), "{}", endpoint.path);
        }
    }
    // What does not exist looks the same to a stranger.
    let answer = send(reqwest::Client::new().get(app.url("/v1/nothing")), None).await;
    assert_eq!(problem(answer).await.0, 401);
    app.stop().await;
}

/// T-01, U14: what is no good token is none, on every route, in every way to
/// present it, and a token is good until it is revoked.
#[tokio::test]
async fn what_is_no_good_token_opens_nothing() {
    let app = App::start().await;
    let id = fixtures::sandbox_id();
    let good = app.tokens.sandboxes.expose().to_owned();
    let administrator = app.client(&app.tokens.admin);
    let scopes = ["sandboxes:read", "sandboxes:write"].map(str::to_owned).to_vec();
    let revoked = administrator.create_token(&CreateToken { scopes, name: None }).await.unwrap();
    administrator.revoke_token(&revoked.id).await.unwrap();
    let flipped: String = good
        .chars()
        .map(|c| if c.is_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
        .collect();
    let headers: Vec<(&str, String)> = vec![
        ("authorization", format!("Bearer {}", revoked.token)),
        ("authorization", format!("Bearer {flipped}")),
        ("authorization", format!("Bearer {}", &good[..good.len() - 1])),
        ("authorization", format!("Bearer {good}x")),
        ("authorization", format!("Bearer {good},Bearer {good}")),
        ("authorization", format!("Bearer \"{good}\"")),
        ("authorization", format!("Basic {good}")),
        ("authorization", good.clone()),
        ("authorization", "Bearer null".to_owned()),
        ("cookie", format!("token={good}")),
        ("x-api-key", good.clone()),
        ("x-forwarded-user", "administrator".to_owned()),
    ];
    for endpoint in endpoints().iter().filter(|endpoint| !endpoint.scopes.is_empty()) {
        for (name, value) in &headers {
            let answer = send(request(&app, endpoint, &id).header(*name, value), None).await;
            let answer = problem(answer).await;
            assert_eq!(
                answer,
                (401, "unauthenticated".into()),
                "{} {name}: {value:.20}",
                endpoint.path
            );
        }
        let twice = request(&app, endpoint, &id).bearer_auth(&good);
        assert_eq!(
            send(twice, Some(&app.tokens.sandboxes)).await.status(),
            401,
            "{}",
            endpoint.path
        );
    }
    app.stop().await;
}

/// T-02, S69: a scope opens what the table says and nothing else.
#[tokio::test]
async fn a_scope_opens_what_the_table_says_and_nothing_else() {
    let app = App::start().await;
    let mut tokens = Vec::new();
    for scope in Scope::ALL {
        tokens.push((scope, app.token(scope.as_str()).await));
    }
    // An id of nothing: with the right scope the answer is about the sandbox,
    // and nothing is done by accident.
    let id = fixtures::sandbox_id();
    for endpoint in endpoints().iter().filter(|endpoint| !endpoint.scopes.is_empty()) {
        for (scope, token) in &tokens {
            let answer = send(request(&app, endpoint, &id), Some(token)).await;
            let status = answer.status().as_u16();
            let place = format!("{} {} with {scope}", endpoint.method, endpoint.path);
            if endpoint.scopes.contains(scope) {
                assert!(status != 401 && status != 403, "{place}: {status}");
            } else {
                assert_eq!(problem(answer).await, (403, "missing_scope".into()), "{place}");
            }
        }
    }
    app.stop().await;
}

/// T-01, S70: a sandbox of another organisation is as unknown as one that never
/// was, byte for byte.
#[tokio::test]
async fn a_foreign_sandbox_is_as_unknown_as_none() {
    let app = App::start().await;
    let id = app.sandboxes().create_sandbox(&base()).await.unwrap().id;
    let stranger = app.stranger("sandboxes:read,sandboxes:write").await;
    for endpoint in endpoints().iter().filter(|endpoint| endpoint.path.contains("/sandboxes/{id}"))
    {
        let foreign = send(request(&app, endpoint, &id), Some(&stranger)).await;
        let nothing = send(request(&app, endpoint, &fixtures::sandbox_id()), Some(&stranger)).await;
        assert_eq!(
            (foreign.status(), nothing.status()),
            (404.try_into().unwrap(), 404.try_into().unwrap()),
            "{}",
            endpoint.path
        );
        assert_eq!(
            foreign.text().await.unwrap(),
            nothing.text().await.unwrap(),
            "{}",
            endpoint.path
        );
    }
    // It goes on undisturbed, and is in nobody else's list.
    assert_eq!(app.sandboxes().sandbox(&id).await.unwrap().state, "running");
    let listed = app.client(&stranger).list_sandboxes(&Default::default()).await.unwrap();
    assert!(listed.items.is_empty());
    app.stop().await;
}

/// An id that cannot be one gets the same answer as one that names nothing.
#[tokio::test]
async fn an_odd_id_is_not_found() {
    let app = App::start().await;
    let token = &app.tokens.sandboxes;
    for id in [
        "x",
        "sbx_",
        "..",
        "%2e%2e",
        "sbx_%00",
        "%0aApproved",
        "tok_aaaaaaaaaaaaaaaaaaaaaaaaaa",
        "sbx_%ff",
    ] {
        let url = app.url(&format!("/v1/sandboxes/{id}/console"));
        let answer = send(reqwest::Client::new().get(url), Some(token)).await;
        assert_eq!(problem(answer).await, (404, "not_found".into()), "{id}");
    }
    app.stop().await;
}
