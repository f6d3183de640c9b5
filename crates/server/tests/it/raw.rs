//! A client that writes what it is told, whether or not it is HTTP.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends `bytes` on a new connection and reads until the server closes it.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(bytes).await.expect("writes");
    let mut answer = Vec::new();
    // A reset is one way for the server to hang up.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request without a body that asks for the connection to be closed.
pub(crate) fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n").into_bytes()
}

/// The status of an answer; 0 when there was none.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
