//! How the server ends: streams are cut, the rest is answered, nothing is left.

use std::time::Duration;

use guest_protocol::process::StartRequest;
use server::Options;
use testkit::app::App;
use tokio::io::AsyncWriteExt as _;

use crate::sandboxes::{base, code};

/// An open stream does not keep the server, and its client can tell that it was
/// cut.
#[tokio::test]
async fn a_shutdown_ends_open_streams() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let mut start = StartRequest::default();
    start.process.cmd = "sleep".into();
    let message = guest_protocol::connect::message(&start).unwrap();
    let request = http::Request::post("/process.Process/Start")
        .header("content-type", "application/connect+json")
        .body(http_body_util::Full::new(message))
        .unwrap();
    let mut stream = client.guest(&id, request).await.unwrap().into_body();
    let exec = api::exec::ExecRequest { cmd: Some(vec!["sleep".into()]), ..Default::default() };
    let waiting = tokio::spawn({
        let (client, id) = (client.clone(), id.clone());
        async move { client.exec(&id, &exec).await }
    });
    while app.backend.guest(&id).is_none_or(|guest| guest.users().len() < 2) {
        tokio::task::yield_now().await;
    }
    app.stop().await;
    let end = loop {
        match http_body_util::BodyExt::frame(&mut stream).await {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(end.is_some_and(|frame| frame.is_err()), "the stream ended as if it were complete");
    assert_eq!(code(waiting.await.unwrap()), "shutting_down");
}

/// A client that never finishes its request is dropped when the time for
/// draining is over.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let options = Options { drain: Duration::from_millis(100), ..Options::default() };
    let app = App::start_with(options).await;
    let mut stuck = tokio::net::TcpStream::connect(app.address).await.unwrap();
    let header = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        app.tokens.sandboxes.expose()
    );
    stuck.write_all(header.as_bytes()).await.unwrap();
    tokio::task::yield_now().await;
    app.stop().await;
}
