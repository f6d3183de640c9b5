//! Drives one process inside a sandbox as if it were a child of ours.
//!
//! Its output appears unchanged and in order, our standard input reaches it when
//! asked for, the signals we get are passed on, and how it ended becomes our
//! exit code. The same code drives a sandbox of this machine and one behind a
//! server.
//!
//! What must hold:
//!
//! - Nothing here grows: one piece of output is held until there is room for it
//!   in the [`Sink`], and the guest waits meanwhile.
//! - A slow reader, a process that reads nothing and a guest that does not answer
//!   delay no signal: everything waits in one `select!`.
//! - The same signal twice within [`TWICE`] ends the wait at once, whatever the
//!   sandbox does.

mod ended;
mod input;
mod signals;
mod sink;

use std::{collections::BTreeMap, pin::pin, time::Duration};

use domain::base32;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use guest_protocol::{
    client::{ClientError, GuestClient, ProcessStream, Transport},
    connect::Code,
    process::{Event, Output, ProcessConfig, Pty, Selector, StartRequest},
};
use tokio::time::{Instant, sleep_until, timeout};

pub(crate) use self::{
    ended::Ended,
    signals::{Happened, Signals},
    sink::{Channel, Kept, Sink},
};
use crate::{
    error::{Failure, Kind, Outcome, printable},
    terminal::{self, Raw},
};

/// Two of the same signal within this time mean "now".
const TWICE: Duration = Duration::from_secs(2);
/// How long a process that is given up may take to die.
const KILL: Duration = Duration::from_secs(2);
/// The guest keeps the time limit; how much later we stop believing that.
const GRACE: Duration = Duration::from_secs(10);
/// What a reader that has gone away does to a process.
const SIGPIPE: i32 = 13;
const SIGKILL: i32 = 9;

/// What to run, and how it is connected.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Variables beside those of the sandbox.
    pub(crate) environment: BTreeMap<String, String>,
    /// The working directory.
    pub(crate) cwd: Option<String>,
    /// The account.
    pub(crate) user: String,
    /// How long it may take.
    pub(crate) timeout: Option<Duration>,
    /// Whether our standard input is passed on.
    pub(crate) input: Input,
    /// Whether it gets a terminal.
    pub(crate) terminal: Terminal,
}

/// Where a process's standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// It is empty.
    Empty,
    /// Ours.
    Ours,
}

/// What a process is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// Pipes.
    No,
    /// A terminal of its own, the size of ours.
    Yes,
}

/// Runs the process to its end.
pub(crate) async fn drive<T: Transport>(
    guest: &GuestClient<T>,
    launch: &Launch,
    sink: &mut Sink,
    signals: &mut Signals,
) -> Outcome<Ended> {
    let raw = match (launch.terminal, launch.input) {
        (Terminal::Yes, Input::Ours) => Some(Raw::enter()?),
        _ => None,
    };
    let limit = launch.timeout.map(|limit| Instant::now() + limit + GRACE);
    let request = request(launch);
    let started = tokio::select! {
        started = guest.start(&request, &launch.user, launch.timeout) => started,
        signal = signals.stop() => return Ok(Ended::Left(signal)),
    };
    let mut stream = match started {
        Ok(stream) => stream,
        Err(ClientError::Refused(refusal)) if refusal.code == Code::DeadlineExceeded => {
            return Ok(Ended::TimedOut);
        }
        Err(error) => return Err(not_started(error)),
    };
    let process = Selector::Pid(stream.pid());
    let ended = attend(guest, launch, &mut stream, sink, signals, limit).await;
    if matches!(ended, Ok(Ended::TimedOut | Ended::Left(_)) | Err(_)) {
        // Nobody follows it any more, so it must not go on.
        drop(timeout(KILL, guest.signal(process, SIGKILL)).await);
    }
    drop(raw);
    ended
}

fn request(launch: &Launch) -> StartRequest {
    let (cmd, args) = match launch.command.split_first() {
        Some((cmd, args)) => (cmd.clone(), args.to_vec()),
        None => (String::new(), Vec::new()),
    };
    let mut envs = launch.environment.clone();
    let pty = (launch.terminal == Terminal::Yes).then(|| Pty { size: terminal::size() });
    if pty.is_some()
        && let Ok(term) = std::env::var("TERM")
    {
        envs.entry("TERM".to_owned()).or_insert(term);
    }
    StartRequest {
        process: ProcessConfig { cmd, args, envs, cwd: launch.cwd.clone() },
        pty,
        // So that it can be named before it has a number.
        tag: Some(format!("cli-{}", base32::encode(&rand::random::<[u8; 16]>()))),
        stdin: Some(launch.input == Input::Ours),
    }
}

async fn attend<T: Transport>(
    guest: &GuestClient<T>,
    launch: &Launch,
    stream: &mut ProcessStream,
    sink: &mut Sink,
    signals: &mut Signals,
    limit: Option<Instant>,
) -> Outcome<Ended> {
    let process = Selector::Pid(stream.pid());
    let mut feeding = pin!(input::feed(guest, &process, launch));
    let mut fed = launch.input == Input::Empty;
    let mut held: Option<(Channel, Vec<u8>)> = None;
    let mut ended = None;
    // Calls under way whose answers nobody waits for: signals and new sizes.
    let mut calls: FuturesUnordered<BoxFuture<'_, Result<(), ClientError>>> =
        FuturesUnordered::new();
    loop {
        if held.is_none()
            && let Some(ended) = ended
        {
            return finish(sink, signals, ended).await;
        }
        tokio::select! {
            event = stream.next(), if held.is_none() => match event {
                Ok(Event::Data(output)) => held = Some(piece(output)),
                Ok(Event::End(end)) => ended = Some(Ended::from(&end)),
                Ok(Event::Start(_) | Event::Keepalive(_)) => {}
                Err(ClientError::Refused(error)) if error.code == Code::DeadlineExceeded => {
                    ended = Some(Ended::TimedOut);
                }
                Err(error) => return Err(error.into()),
            },
            room = sink.room(), if held.is_some() => match (room, held.take()) {
                (Some(room), Some((channel, bytes))) => room.put(channel, bytes),
                // What would have happened to it in a pipeline.
                _ => return Ok(Ended::Left(SIGPIPE)),
            },
            () = &mut feeding, if !fed => fed = true,
            happened = signals.next() => match happened {
                Happened::Signal(_) if signals.insisted() => {
                    return Ok(Ended::Left(signals.last()));
                }
                Happened::Signal(number) => {
                    calls.push(Box::pin(guest.signal(process.clone(), number)));
                }
                Happened::Resized if launch.terminal == Terminal::Yes => {
                    calls.push(Box::pin(guest.resize(process.clone(), terminal::size())));
                }
                Happened::Resized => {}
            },
            Some(answer) = calls.next(), if !calls.is_empty() => {
                if let Err(error) = answer {
                    tracing::debug!(%error, "a signal or a new size did not arrive");
                }
            }
            () = at(limit) => return Ok(Ended::TimedOut),
        }
    }
}

/// Waits until all output has been taken.
async fn finish(sink: &mut Sink, signals: &mut Signals, ended: Ended) -> Outcome<Ended> {
    let mut flushing = pin!(sink.flush());
    loop {
        tokio::select! {
            flushed = &mut flushing => {
                return Ok(if flushed { ended } else { Ended::Signaled(SIGPIPE) });
            }
            happened = signals.next() => {
                if let Happened::Signal(number) = happened {
                    return Ok(Ended::Signaled(number));
                }
            }
        }
    }
}

fn piece(output: Output) -> (Channel, Vec<u8>) {
    match output {
        Output::Stdout(bytes) | Output::Pty(bytes) => (Channel::Output, bytes.0),
        Output::Stderr(bytes) => (Channel::Error, bytes.0),
    }
}

/// As a shell: 127 when there is no such program, 126 when it cannot be executed.
fn not_started(error: ClientError) -> Failure {
    let ClientError::Refused(refusal) = &error else { return error.into() };
    let message = printable(&refusal.message);
    match refusal.code {
        Code::NotFound => Failure::new(Kind::NotFound, message),
        Code::PermissionDenied | Code::InvalidArgument
            if message.ends_with("permission denied") || message.contains("not a program") =>
        {
            Failure::new(Kind::NotExecutable, message)
        }
        _ => error.into(),
    }
}

async fn at(limit: Option<Instant>) {
    match limit {
        Some(limit) => sleep_until(limit).await,
        None => std::future::pending().await,
    }
}
