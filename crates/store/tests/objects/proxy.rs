//! A proxy that does to a request what networks and stores do.
//!
//! One request for each connection, so that a fault hits one request.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What becomes of one request.
pub(crate) enum Fault {
    /// It is passed on.
    None,
    /// Nothing is answered.
    Stall,
    /// The store says no, with an S3 code.
    Status(u16, &'static str),
    /// The answer ends after so many bytes.
    CutAnswer(usize),
    /// Half of the request reaches the store.
    CutRequest,
    /// The store does it, and nobody hears of it.
    LoseAnswer,
}

type Rule = Box<dyn FnMut(&str) -> Fault + Send>;

/// A proxy before one server.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    rule: Arc<Mutex<Rule>>,
    serving: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| Fault::None)));
        let rules = Arc::clone(&rule);
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let rules = Arc::clone(&rules);
                // A fault is an error of the connection; that is its purpose.
                tokio::spawn(async move { pass(client, server, &rules).await.ok() });
            }
        });
        Self { address, rule, serving }
    }

    /// Decides by the first line of each request from now on.
    pub(crate) fn does(&self, rule: impl FnMut(&str) -> Fault + Send + 'static) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(rule);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    rule: &Mutex<Rule>,
) -> std::io::Result<()> {
    let (head, mut body) = read_head(&mut client).await?;
    let length = header(&head, "content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while body.len() < length {
        if client.read_buf(&mut body).await? == 0 {
            return Ok(());
        }
    }
    let line = head.lines().next().unwrap_or_default().to_owned();
    let fault = rule.lock().unwrap_or_else(PoisonError::into_inner)(&line);
    match fault {
        Fault::Stall => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            return Ok(());
        }
        Fault::Status(status, code) => {
            let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
            let answer = format!(
                "HTTP/1.1 {status} x\r\ncontent-type: application/xml\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{text}",
                text.len()
            );
            return client.write_all(answer.as_bytes()).await;
        }
        Fault::None | Fault::CutAnswer(_) | Fault::CutRequest | Fault::LoseAnswer => {}
    }
    let mut upstream = TcpStream::connect(server).await?;
    let head = head.trim_end_matches("\r\n");
    upstream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    if matches!(fault, Fault::CutRequest) {
        upstream.write_all(&body[..body.len() / 2]).await?;
        return Ok(());
    }
    upstream.write_all(&body).await?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).await?;
    match fault {
        Fault::LoseAnswer => return Ok(()),
        Fault::CutAnswer(most) => answer.truncate(most),
        _ => {}
    }
    client.write_all(&answer).await?;
    client.shutdown().await
}

async fn read_head(client: &mut TcpStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
