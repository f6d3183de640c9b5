//! Running a command to its end.

use std::time::Duration;

use api::exec::{ExecRequest, OnDisconnect};
use http_body_util::BodyExt as _;
use server::Options;
use testkit::app::App;

use crate::sandboxes::{base, code};

fn cmd(words: &[&str]) -> ExecRequest {
    let cmd = words.iter().map(|word| (*word).to_owned()).collect();
    ExecRequest { cmd: Some(cmd), ..Default::default() }
}

/// S75, S88
#[tokio::test]
async fn a_command_gives_its_output_and_code() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let result = client.exec(&id, &cmd(&["echo", "hello", "world"])).await.unwrap();
    assert_eq!(result.stdout.as_deref(), Some("hello world\n"));
    assert_eq!((result.stderr.as_deref(), result.exit_code), (Some(""), 0));
    assert!(!result.timed_out && !result.truncated.stdout);
    assert_eq!(client.exec(&id, &cmd(&["fail", "7"])).await.unwrap().exit_code, 7);
    let result = client.exec(&id, &cmd(&["stderr", "oh"])).await.unwrap();
    assert_eq!(result.stderr.as_deref(), Some("oh"));
    assert_eq!(code(client.exec(&id, &cmd(&["nothing"])).await), "path_not_found");
    app.stop().await;
}

/// output beyond the bound is marked and dropped, and the command still
/// comes to its own end.
#[tokio::test]
async fn output_is_cut_and_the_command_is_not_disturbed() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let request = ExecRequest { max_output_bytes: Some(1000), ..cmd(&["flood", "20000000"]) };
    let result = client.exec(&id, &request).await.unwrap();
    assert_eq!(result.stdout.unwrap().len(), 1000);
    assert!(result.truncated.stdout && !result.truncated.stderr);
    assert_eq!((result.exit_code, result.timed_out), (0, false));
    app.stop().await;
}

/// A guest that does not end a command at its limit does not hold the request.
#[tokio::test]
async fn a_command_that_outlives_its_limit_is_timed_out() {
    let options = Options { exec_grace: Duration::from_millis(50), ..Options::default() };
    let app = App::start_with(options).await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let request = ExecRequest { timeout_seconds: Some(1), ..cmd(&["sleep"]) };
    let result = client.exec(&id, &request).await.unwrap();
    assert!(result.timed_out);
    assert_eq!(result.exit_code, -1);
    app.stop().await;
}

/// A machine that dies under a command is an error, not an empty result.
#[tokio::test]
async fn a_machine_that_dies_under_a_command_is_an_error() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let running = tokio::spawn({
        let (client, id) = (client.clone(), id.clone());
        async move { client.exec(&id, &cmd(&["sleep"])).await }
    });
    while app.backend.guest(&id).is_none_or(|guest| guest.users().is_empty()) {
        tokio::task::yield_now().await;
    }
    app.backend.crash(&id, "the machine panicked");
    assert_eq!(code(running.await.unwrap()), "guest_unreachable");
    app.stop().await;
}

/// A 10 MiB argument: a clear answer with the limit in it.
#[tokio::test]
async fn an_argument_that_is_too_large_is_refused() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let large = client.exec(&id, &cmd(&["echo", &"x".repeat(10 << 20)])).await;
    assert_eq!(code(large), "body_too_large");
    let still = client.exec(&id, &cmd(&["echo", &"x".repeat(5 << 20)])).await;
    assert_eq!(code(still), "invalid_request");
    app.stop().await;
}

/// A client that hangs up ends its command when it asked for that; otherwise the
/// command runs on.
#[tokio::test]
async fn a_command_outlives_its_client_unless_told_otherwise() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let processes = || async {
        let path = http::Request::post("/process.Process/List")
            .header("content-type", "application/json")
            .body(http_body_util::Full::new(bytes::Bytes::from_static(b"{}")))
            .unwrap();
        let answer = client.guest(&id, path).await.unwrap().into_body().collect().await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.to_bytes()).unwrap()["processes"]
            .as_array()
            .map_or(0, Vec::len)
    };
    for (on_disconnect, left) in [(Some(OnDisconnect::Kill), 0), (None, 1)] {
        let request = ExecRequest { on_disconnect, ..cmd(&["sleep"]) };
        let running = tokio::spawn({
            let (client, id) = (client.clone(), id.clone());
            async move { client.exec(&id, &request).await }
        });
        while processes().await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        running.abort();
        drop(running.await);
        let begun = std::time::Instant::now();
        while processes().await > 0 && begun.elapsed() < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(processes().await, left, "{on_disconnect:?}");
    }
    app.stop().await;
}
