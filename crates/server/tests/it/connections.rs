//! Who may hold a connection, and how long.

use std::{net::SocketAddr, time::Duration};

use domain::token::Token;
use server::Options;
use testkit::app::App;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{raw, sandboxes::base};

const SHORT: Duration = Duration::from_millis(300);

/// A request that keeps its connection.
fn get(path: &str, token: Option<&Token>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {}\r\n", token.expose()));
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{}\r\n", token.unwrap_or_default())
}

/// Sends a request and returns the head of the answer, whose body is read too.
async fn ask(stream: &mut TcpStream, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    Ok(head)
}

/// Whether the server has closed it.
async fn is_closed(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0]).await, Ok(1..))
}

/// Strangers hold a share of the connections, each for a while, and never
/// keep out whoever has a token.
#[tokio::test]
async fn strangers_do_not_keep_callers_out() {
    let options = Options { max_connections: 16, ..Options::default() };
    let app = App::start_with(options).await;
    let token = Some(&app.tokens.sandboxes);
    let mut early = TcpStream::connect(app.address).await.unwrap();
    assert!(ask(&mut early, &get("/v1/limits", token)).await.unwrap().contains(" 200 "));
    let mut strangers = Vec::new();
    for _ in 0..100 {
        strangers.push(TcpStream::connect(app.address).await.unwrap());
    }
    for _ in 0..5 {
        let mut late = TcpStream::connect(app.address).await.unwrap();
        assert!(ask(&mut late, &get("/v1/limits", token)).await.unwrap().contains(" 200 "));
    }
    assert!(ask(&mut early, &get("/v1/limits", token)).await.unwrap().contains(" 200 "));
    // A bad token settles nobody: this one is pushed out like the silent ones.
    let mut bad = TcpStream::connect(app.address).await.unwrap();
    let unknown = Token::from_random([9; 32]);
    assert!(ask(&mut bad, &get("/v1/limits", Some(&unknown))).await.unwrap().contains(" 401 "));
    for _ in 0..8 {
        strangers.push(TcpStream::connect(app.address).await.unwrap());
    }
    assert!(is_closed(&mut bad).await);
    app.stop().await;
}

/// A stranger is not served for ever by asking what needs no token.
#[tokio::test]
async fn a_stranger_is_cut_off_in_time() {
    let app = App::start_with(Options { header_timeout: SHORT, ..Options::default() }).await;
    let mut stranger = TcpStream::connect(app.address).await.unwrap();
    let mut answers = 0;
    while ask(&mut stranger, &get("/healthz", None)).await.is_ok() {
        answers += 1;
        tokio::time::sleep(SHORT / 10).await;
    }
    assert!(answers > 0);
    app.stop().await;
}

/// When callers have taken every place of theirs, the next is told so.
#[tokio::test]
async fn more_callers_than_places_are_told() {
    let app = App::start_with(Options { max_connections: 3, ..Options::default() }).await;
    let request = get("/v1/limits", Some(&app.tokens.sandboxes));
    let mut settled = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(app.address).await.unwrap();
        assert!(ask(&mut stream, &request).await.unwrap().contains(" 200 "));
        settled.push(stream);
    }
    let mut last = TcpStream::connect(app.address).await.unwrap();
    assert!(ask(&mut last, &request).await.unwrap().contains(" 503 "));
    // With a place free, the same connection is served.
    settled.pop();
    while !ask(&mut last, &request).await.unwrap().contains(" 200 ") {
        tokio::task::yield_now().await;
    }
    app.stop().await;
}

/// Connects with a small buffer, asks for much, and reads none of it.
async fn never_reads(address: SocketAddr, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// R-02: an answer that nobody reads is held for a while, and gives its memory
/// back when its connection is cut.
#[tokio::test]
async fn an_answer_that_nobody_reads_is_dropped() {
    let options = Options { answer_pause: SHORT, memory: 32 << 20, ..Options::default() };
    let app = App::start_with(options).await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let body = r#"{"cmd":["flood","4000000"],"max_output_bytes":8388608}"#;
    let request = format!(
        "POST /v1/sandboxes/{id}/exec HTTP/1.1\r\nhost: localhost\r\n\
         authorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        app.tokens.sandboxes.expose(),
        body.len()
    );
    let whole = || async {
        let request: api::exec::ExecRequest = serde_json::from_str(body).unwrap();
        !client.exec(&id, &request).await.unwrap().truncated.stdout
    };
    // Each needs 12 MB while it runs and 4 while it waits: with seven of them
    // waiting there is no room for another to run.
    let mut silent = Vec::new();
    for _ in 0..7 {
        let stream = never_reads(app.address, &request).await;
        stream.readable().await.unwrap();
        silent.push(stream);
    }
    while !whole().await {
        tokio::time::sleep(SHORT / 10).await;
    }
    for stream in &mut silent {
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
        assert!(rest.len() < 4_000_000, "{} bytes arrived", rest.len());
    }
    assert_eq!(raw::status(&raw::exchange(app.address, b"GET / HTTP/1.1\r\n\r\n").await), 403);
    app.stop().await;
}
