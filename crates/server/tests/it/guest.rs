//! The edge of the API inside a sandbox.

use std::time::Duration;

use bytes::Bytes;
use guest_protocol::{
    client::{Body, BoxError, GuestClient, Transport},
    process::{Event, Output, Selector, StartRequest},
};
use http_body_util::BodyExt as _;
use testkit::app::App;

use crate::{
    raw,
    sandboxes::{base, code},
};

/// The glue a client program has between the typed guest client and REST.
struct OverRest {
    client: api::client::Client,
    id: domain::id::SandboxId,
    on_disconnect: &'static str,
}

#[async_trait::async_trait]
impl Transport for OverRest {
    async fn send(
        &self,
        mut request: http::Request<Body>,
    ) -> Result<http::Response<Body>, BoxError> {
        let word = http::HeaderValue::from_static(self.on_disconnect);
        request.headers_mut().insert(api::guest::ON_DISCONNECT, word);
        let answer = self.client.guest(&self.id, request).await?;
        Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }
}

async fn guest(app: &App) -> (GuestClient<OverRest>, domain::id::SandboxId) {
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    (GuestClient::new(OverRest { client, id: id.clone(), on_disconnect: "continue" }), id)
}

fn start(words: &[&str]) -> StartRequest {
    let mut words = words.iter().map(|word| (*word).to_owned());
    let mut start = StartRequest::default();
    start.process.cmd = words.next().unwrap();
    start.process.args = words.collect();
    start
}

/// Processes and files through the edge, as the command line uses it.
#[tokio::test]
async fn the_typed_client_works_through_the_edge() {
    let app = App::start().await;
    let (guest, id) = guest(&app).await;
    let mut process = guest.start(&start(&["echo", "hi"]), "user", None).await.unwrap();
    let Event::Data(Output::Stdout(bytes)) = process.next().await.unwrap() else { panic!() };
    assert_eq!(bytes.0, b"hi\n");
    let Event::End(end) = process.next().await.unwrap() else { panic!() };
    assert!(end.exited);

    let mut sleeping = guest.start(&start(&["sleep"]), "root", None).await.unwrap();
    let pid = sleeping.pid();
    assert_eq!(guest.processes().await.unwrap().len(), 1);
    guest.signal(Selector::Pid(pid), 9).await.unwrap();
    let Event::End(end) = sleeping.next().await.unwrap() else { panic!() };
    assert_eq!(end.status, "signal: killed");

    let body = http_body_util::Full::new(Bytes::from_static(b"content"));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    guest.write_file("/f", "user", body).await.unwrap();
    let (length, body) = guest.read_file("/f", "user").await.unwrap();
    assert_eq!(length, Some(7));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "content");
    assert_eq!(app.backend.guest(&id).unwrap().file("/f").unwrap(), b"content");
    app.stop().await;
}

/// Everything the table does not name is not found, by any spelling.
#[tokio::test]
async fn nothing_else_of_the_guest_can_be_reached() {
    let app = App::start().await;
    let (_, id) = guest(&app).await;
    let token = app.tokens.sandboxes.expose();
    for path in
        ["init", "envs", "%69nit", "./health/../init", "files/compose", "health/", "", "/health"]
    {
        for method in ["GET", "POST", "PUT"] {
            let text = format!(
                "{method} /v1/sandboxes/{id}/guest/{path} HTTP/1.1\r\nhost: localhost\r\n\
                 authorization: Bearer {token}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            let answer = raw::exchange(app.address, text.as_bytes()).await;
            let status = raw::status(&answer);
            assert!([404, 405].contains(&status), "{method} {path}: {answer}");
        }
    }
    assert!(app.backend.guest(&id).unwrap().users().is_empty(), "a call got through");
    app.stop().await;
}

/// A refusal of the server is told apart from an answer of the guest.
#[tokio::test]
async fn a_refusal_of_the_server_is_an_error_of_the_client() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let request =
        |path: &str| http::Request::get(path).body(http_body_util::Empty::<Bytes>::new()).unwrap();
    let answer = client.guest(&id, request("/files?path=/none")).await.unwrap();
    assert_eq!(answer.status(), 404);
    assert_eq!(code(client.guest(&id, request("/none")).await.map(drop)), "not_found");
    client.terminate(&id).await.unwrap();
    assert_eq!(code(client.guest(&id, request("/health")).await.map(drop)), "sandbox_not_running");
    app.stop().await;
}

/// A machine that dies in the middle of a stream cuts the client's connection; a
/// clean end would look like the end of the output.
#[tokio::test]
async fn a_stream_of_a_dying_machine_is_cut() {
    let app = App::start().await;
    let (guest, id) = guest(&app).await;
    let mut process = guest.start(&start(&["sleep"]), "user", None).await.unwrap();
    app.backend.crash(&id, "the machine panicked");
    let error = process.next().await.unwrap_err();
    assert!(matches!(error, guest_protocol::client::ClientError::Unreachable(_)), "{error:?}");
    app.stop().await;
}

/// a reader that does not read holds the guest, not the server's memory.
/// The flood behind it comes to a halt once the buffers on the way are full, and
/// goes on when the reader does.
#[tokio::test]
async fn a_reader_that_does_not_read_holds_the_guest_back() {
    let app = App::start().await;
    let (guest, id) = guest(&app).await;
    let fake = app.backend.guest(&id).unwrap();
    let mut process = guest.start(&start(&["flood", "1000000000"]), "user", None).await.unwrap();
    let (mut before, mut unchanged) = (0, 0);
    while unchanged < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = fake.flooded();
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
    }
    assert!(before < 64 << 20, "{before} bytes are under way");
    let mut seen = 0;
    while seen <= before {
        if let Event::Data(Output::Stdout(bytes)) = process.next().await.unwrap() {
            seen += bytes.0.len();
        }
    }
    drop(process);
    app.stop().await;
}

/// A client that hangs up closes the guest's stream.
#[tokio::test]
async fn a_client_that_hangs_up_lets_go_of_the_guest() {
    let app = App::start().await;
    let (guest, _) = guest(&app).await;
    let process = guest.start(&start(&["flood"]), "user", None).await.unwrap();
    assert_eq!(guest.processes().await.unwrap().len(), 1);
    drop(process);
    // The flood ends when nobody can read it any more.
    while !guest.processes().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    app.stop().await;
}

/// A client that hangs up ends its process when it asked for that, and only then.
#[tokio::test]
async fn a_client_that_hangs_up_ends_its_process_if_it_asked_for_that() {
    let app = App::start().await;
    let (guest, id) = guest(&app).await;
    let leashed = GuestClient::new(OverRest { client: app.sandboxes(), id, on_disconnect: "kill" });
    let tagged = |tag: &str| StartRequest { tag: Some(tag.to_owned()), ..start(&["sleep"]) };
    let stays = guest.start(&tagged("stays"), "user", None).await.unwrap().pid();
    let goes = leashed.start(&tagged("goes"), "user", None).await.unwrap();
    assert_eq!(guest.processes().await.unwrap().len(), 2);
    drop(goes);
    while guest.processes().await.unwrap().len() > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(guest.processes().await.unwrap()[0].pid, stays);
    // One that was not on a leash is not known to be without a client.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(guest.processes().await.unwrap().len(), 1);
    app.stop().await;
}
