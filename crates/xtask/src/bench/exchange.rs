//! HTTP as the measurements need it: one connection that stays open, one request
//! at a time, and the time of every piece of an answer.
//!
//! It is a client of our own server and of nothing else: it trusts what it reads
//! and fails on what it does not expect.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, ensure};
use serde_json::Value;

/// Longer than any answer takes that is worth measuring.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to the server.
#[derive(Debug)]
pub(super) struct Exchange {
    stream: BufReader<TcpStream>,
    token: String,
}

impl Exchange {
    pub(super) fn open(url: &str, token: &str) -> anyhow::Result<Self> {
        let address = url.strip_prefix("http://").context("the server speaks plain HTTP")?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), token: token.to_owned() })
    }

    /// Sends JSON, or nothing, and returns the JSON of the answer, null if it is empty.
    pub(super) fn call(&mut self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        let mut answer = Vec::new();
        self.send(method, path, "application/json", &body, |piece| answer.extend_from_slice(piece))
            .with_context(|| format!("{method} {path}"))?;
        Ok(if answer.is_empty() { Value::Null } else { serde_json::from_slice(&answer)? })
    }

    /// Sends a body and passes each piece of the answer to `read` as it arrives.
    pub(super) fn send(
        &mut self,
        method: &str,
        path: &str,
        content: &str,
        body: &[u8],
        mut read: impl FnMut(&[u8]),
    ) -> anyhow::Result<()> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: {content}\r\nContent-Length: {}\r\n\r\n",
            self.token,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        let status = self.line()?;
        let mut length = 0;
        let mut is_chunked = false;
        loop {
            let header = self.line()?.to_ascii_lowercase();
            match header.split_once(": ") {
                None => break,
                Some(("content-length", value)) => length = value.parse()?,
                Some(("transfer-encoding", value)) => is_chunked = value == "chunked",
                Some(_) => {}
            }
        }
        let mut refused = Vec::new();
        let succeeded = status.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
        let mut take = |piece: &[u8]| {
            if succeeded { read(piece) } else { refused.extend_from_slice(piece) }
        };
        if is_chunked {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16)?;
                take(&self.exactly(size)?);
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            take(&self.exactly(length)?);
        }
        ensure!(succeeded, "{status}: {}", String::from_utf8_lossy(&refused));
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the server closed the connection");
        Ok(line.trim_end().to_owned())
    }

    fn exactly(&mut self, size: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
