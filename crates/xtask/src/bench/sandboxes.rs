//! Our own sandboxes, through the server and through the command line.

use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::{
    exchange::Exchange,
    peers::{self, PROGRAM, Timing},
};
use crate::service::{Place, Service};

/// A server to measure.
#[derive(Debug)]
pub(super) struct Sandboxes<'a> {
    place: &'a Place,
    url: String,
    token: String,
    /// The server's own process.
    pub(super) process: u32,
}

/// The times of one sandbox, from the moment in which it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) timing: Timing,
    /// The answer to the create: the guest is ready.
    pub(super) created: std::time::Duration,
    /// The program's end, before the sandbox is removed.
    pub(super) ended: std::time::Duration,
}

impl<'a> Sandboxes<'a> {
    pub(super) fn new(place: &'a Place, service: &Service) -> anyhow::Result<Self> {
        let (url, process) = (service.url.clone(), service.process);
        Ok(Self { place, url, token: service.token()?, process })
    }

    pub(super) fn open(&self) -> anyhow::Result<Exchange> {
        Exchange::open(&self.url, &self.token)
    }

    /// Creates a sandbox, runs the program in it, and removes it.
    pub(super) fn time_life(&self, exchange: &mut Exchange) -> anyhow::Result<Life> {
        let began = Instant::now();
        let id = create(exchange)?;
        let created = began.elapsed();
        let mut first = None;
        let mut seen = Vec::new();
        let path = format!("/v1/sandboxes/{id}/guest/process.Process/Start");
        let message =
            json!({"process": {"cmd": PROGRAM[0], "args": &PROGRAM[1..]}, "stdin": false});
        exchange.send(
            "POST",
            &path,
            "application/connect+json",
            &envelope(&message)?,
            |piece| {
                seen.extend_from_slice(piece);
                if first.is_none() && contains(&seen, b"\"stdout\"") {
                    first = Some(began.elapsed());
                }
            },
        )?;
        let ended = began.elapsed();
        ensure!(contains(&seen, b"\"end\""), "{}", String::from_utf8_lossy(&seen));
        remove(exchange, &id)?;
        let exit = began.elapsed();
        let first = first.context("the program printed nothing")?;
        Ok(Life { timing: Timing { first, exit }, created, ended })
    }

    /// The command line without a server.
    pub(super) fn time_run(&self) -> anyhow::Result<Timing> {
        let mut run = self.place.command()?;
        peers::time(run.args(["run", "--"]).args(PROGRAM))
    }

    /// The command line as a client of the server.
    pub(super) fn time_exec_command(&self, id: &str) -> anyhow::Result<Timing> {
        let mut exec = self.place.command()?;
        peers::time(exec.args(["sandbox", "exec", id, "--"]).args(PROGRAM))
    }
}

/// Creates a small sandbox and returns its id.
pub(super) fn create(exchange: &mut Exchange) -> anyhow::Result<String> {
    let body = json!({"template": "base", "size": "small", "timeout_seconds": 3600});
    let sandbox = exchange.call("POST", "/v1/sandboxes", &body)?;
    Ok(sandbox["id"].as_str().context("a sandbox has an id")?.to_owned())
}

pub(super) fn remove(exchange: &mut Exchange, id: &str) -> anyhow::Result<()> {
    exchange.call("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).map(drop)
}

/// Runs a program to its end and returns the answer.
pub(super) fn exec(exchange: &mut Exchange, id: &str, program: &[&str]) -> anyhow::Result<Value> {
    let body = json!({"cmd": program});
    let result = exchange.call("POST", &format!("/v1/sandboxes/{id}/exec"), &body)?;
    ensure!(result["exit_code"] == 0, "{result}");
    Ok(result)
}

/// A message of a Connect stream.
fn envelope(message: &Value) -> anyhow::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(json.len())?.to_be_bytes());
    bytes.extend_from_slice(&json);
    Ok(bytes)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
