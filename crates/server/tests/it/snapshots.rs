//! Pausing, resuming, copying and snapshots, over HTTP through the typed client.

use api::{
    exec::ExecRequest,
    sandboxes::{CreateSandbox, Fork, Resume},
    snapshots::{CreateSnapshot, ListSnapshots},
};
use testkit::{app::App, fake_backend::Call};

use crate::sandboxes::{base, code};

fn echo() -> ExecRequest {
    ExecRequest { cmd: Some(vec!["echo".into(), "hello".into()]), ..ExecRequest::default() }
}

/// S33, S37, K10, K11, K13
#[tokio::test]
async fn a_sandbox_is_paused_and_resumed() {
    let app = App::start().await;
    let client = app.sandboxes();
    let made = client.create_sandbox(&base()).await.unwrap();
    for _ in 0..3 {
        let paused = client.pause(&made.id).await.unwrap();
        assert_eq!(paused.state, "paused");
        assert!(paused.paused_at.is_some() && paused.remaining_seconds > Some(200));
        assert_eq!(code(client.exec(&made.id, &echo()).await), "sandbox_paused");
        assert_eq!(code(client.set_timeout(&made.id, 60).await), "sandbox_paused");
        let resumed = client.resume(&made.id, &Resume::default()).await.unwrap();
        assert_eq!((resumed.state.as_str(), resumed.paused_at), ("running", None));
        assert_eq!(client.exec(&made.id, &echo()).await.unwrap().exit_code, 0);
    }
    // The body may be left out.
    client.pause(&made.id).await.unwrap();
    let url = app.url(&format!("/v1/sandboxes/{}/resume", made.id));
    let request = reqwest::Client::new().post(url).bearer_auth(app.tokens.sandboxes.expose());
    assert_eq!(request.send().await.unwrap().status(), 200);
    app.stop().await;
}

/// The next exec resumes it and succeeds.
#[tokio::test]
async fn an_exec_resumes_a_paused_sandbox() {
    let app = App::start().await;
    let client = app.sandboxes();
    let create = CreateSandbox { auto_resume: true, ..base() };
    let made = client.create_sandbox(&create).await.unwrap();
    client.pause(&made.id).await.unwrap();
    assert_eq!(client.exec(&made.id, &echo()).await.unwrap().exit_code, 0);
    assert_eq!(client.sandbox(&made.id).await.unwrap().state, "running");
    app.stop().await;
}

/// K3, K14: what failed is said, with a code.
#[tokio::test]
async fn what_failed_is_said() {
    let app = App::start().await;
    let client = app.sandboxes();
    let made = client.create_sandbox(&base()).await.unwrap();
    app.backend.fail(Call::Capture, Some("no space left"));
    assert_eq!(code(client.pause(&made.id).await), "snapshot_failed");
    assert_eq!(client.sandbox(&made.id).await.unwrap().state, "running");
    app.backend.fail(Call::Capture, None);
    client.pause(&made.id).await.unwrap();
    app.backend.fail(Call::Create, Some("no memory left"));
    assert_eq!(code(client.resume(&made.id, &Resume::default()).await), "resume_failed");
    assert_eq!(client.sandbox(&made.id).await.unwrap().state, "paused");
    app.backend.change_machine(Some("QEMU was 7.2 and is 9.0"));
    assert_eq!(code(client.resume(&made.id, &Resume::default()).await), "snapshot_incompatible");
    client.terminate(&made.id).await.unwrap();
    assert_eq!(code(client.resume(&made.id, &Resume::default()).await), "sandbox_not_running");
    app.stop().await;
}

#[tokio::test]
async fn a_sandbox_is_copied() {
    let app = App::start().await;
    let client = app.sandboxes();
    let made = client.create_sandbox(&base()).await.unwrap();
    let copies = client.fork(&made.id, &Fork { count: Some(3), ..Fork::default() }).await.unwrap();
    assert_eq!(copies.items.len(), 3);
    for copy in copies.items {
        assert!(copy.state == "running" && copy.id != made.id && copy.snapshot.is_some());
        assert_eq!(client.exec(&copy.id, &echo()).await.unwrap().exit_code, 0);
    }
    for count in [0, 101] {
        let fork = Fork { count: Some(count), ..Fork::default() };
        assert_eq!(code(client.fork(&made.id, &fork).await), "invalid_request");
    }
    let fork = Fork { count: Some(100), ..Fork::default() };
    assert_eq!(code(client.fork(&made.id, &fork).await), "quota_exceeded");
    app.stop().await;
}

#[tokio::test]
async fn a_sandbox_starts_from_a_snapshot() {
    let app = App::start().await;
    let client = app.sandboxes();
    let made = client.create_sandbox(&base()).await.unwrap();
    let create = CreateSnapshot { name: "warm".into(), keep_seconds: Some(3600) };
    let snapshot = client.create_snapshot(&made.id, &create).await.unwrap();
    assert_eq!((snapshot.state.as_str(), snapshot.kind.as_str()), ("ready", "full"));
    assert!(snapshot.stored_bytes > 0 && snapshot.expires_at.is_some());
    assert_eq!(code(client.create_snapshot(&made.id, &create).await), "snapshot_name_taken");
    let listed = client.list_snapshots(&ListSnapshots::default()).await.unwrap();
    assert_eq!(listed.items, std::slice::from_ref(&snapshot));
    assert_eq!(client.snapshot(snapshot.id.as_str()).await.unwrap(), snapshot);
    let from = CreateSandbox { snapshot: Some("warm".into()), ..CreateSandbox::default() };
    let copy = client.create_sandbox(&from).await.unwrap();
    assert_eq!((copy.snapshot, copy.memory_mb), (Some(snapshot.id), made.memory_mb));
    for wrong in [
        CreateSandbox { template: "base".into(), ..from.clone() },
        CreateSandbox { size: Some("small".into()), ..from.clone() },
    ] {
        assert_eq!(code(client.create_sandbox(&wrong).await), "invalid_request");
    }
    client.delete_snapshot("warm").await.unwrap();
    assert_eq!(code(client.snapshot("warm").await), "not_found");
    assert_eq!(code(client.create_sandbox(&from).await), "not_found");
    let odd = CreateSnapshot { name: "Odd name".into(), keep_seconds: None };
    assert_eq!(code(client.create_snapshot(&made.id, &odd).await), "invalid_request");
    app.stop().await;
}
