//! Files as raw bytes.

use api::files::FileQuery;
use http_body_util::BodyExt as _;
use testkit::app::App;

use crate::sandboxes::{base, code};

fn file(path: &str) -> FileQuery {
    FileQuery { path: path.into(), user: None }
}

/// S76, S77, S78, S90: bytes arrive unchanged, whatever they are.
#[tokio::test]
async fn bytes_arrive_unchanged_both_ways() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7) as u8).collect();
    let path = file("/home/user/a b\n%2e&ü.bin");
    let written = client.write_file(&id, &path, content.clone()).await.unwrap();
    assert_eq!((written.path.as_str(), written.size), (path.path.as_str(), 3_000_000));
    let read = client.read_file(&id, &path).await.unwrap();
    assert_eq!(read.headers()["content-type"], "application/octet-stream");
    assert_eq!(read.headers()["content-length"], "3000000");
    assert!(read.into_body().collect().await.unwrap().to_bytes() == content);
    client.remove_file(&id, &path).await.unwrap();
    assert_eq!(code(client.read_file(&id, &path).await.map(drop)), "path_not_found");
    app.stop().await;
}

#[tokio::test]
async fn a_directory_is_listed() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    client.write_file(&id, &file("/data/one"), "1").await.unwrap();
    let listed = client.list_directory(&id, &file("/data")).await.unwrap();
    assert_eq!(listed.entries[0].name, "one");
    assert_eq!((listed.entries[0].kind.as_str(), listed.entries[0].size), ("file", 1));
    app.stop().await;
}

/// F-01: no spelling of a path reaches anything but the guest, and one that no
/// kernel could take does not reach even that.
#[tokio::test]
async fn a_path_is_never_one_of_the_host() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let token = app.tokens.sandboxes.expose();
    let http = reqwest::Client::new();
    for (query, status) in [
        ("path=../../etc/shadow", 404),
        ("path=..%2f..%2fetc%2fshadow", 404),
        ("path=%252e%252e%252f", 404),
        ("path=/workspace/../../etc/shadow", 404),
        ("path=..;/etc", 404),
        ("path=a%00.png", 400),
        ("path=", 400),
        ("", 400),
        ("path=a&path=b", 400),
        ("path=a&other=b", 400),
        ("path=a&user=root:x", 400),
    ] {
        let url = app.url(&format!("/v1/sandboxes/{id}/files?{query}"));
        let answer = http.get(url).bearer_auth(token).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{query}");
        assert!(!answer.text().await.unwrap().contains("root:"), "{query}");
    }
    let long = file(&"a".repeat(4096));
    assert_eq!(code(client.write_file(&id, &long, "x").await), "invalid_request");
    app.stop().await;
}

#[tokio::test]
async fn a_full_disk_is_a_clear_answer() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    assert_eq!(code(client.write_file(&id, &file("/full"), "x").await), "sandbox_exhausted");
    client.terminate(&id).await.unwrap();
    assert_eq!(code(client.write_file(&id, &file("/a"), "x").await), "sandbox_not_running");
    app.stop().await;
}

/// The account of a call is the one that was asked for.
#[tokio::test]
async fn the_account_is_passed_on() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let query = FileQuery { path: "/root/x".into(), user: Some("root".into()) };
    client.write_file(&id, &query, "x").await.unwrap();
    // `root:` in base64.
    assert_eq!(app.backend.guest(&id).unwrap().users().last().unwrap(), "Basic cm9vdDo=");
    app.stop().await;
}
