//! From a process's output to whoever listens.
//!
//! ```text
//!  stdout ─┐
//!          ├─► pieces ─► every listener's queue      (waits for the slowest)
//!  stderr ─┘        └──► nobody                      (dropped)
//! ```
//!
//! The end is announced when the process has ended and both streams are at
//! theirs. A descendant may hold a stream open for ever: then the end is
//! announced once all that the process itself can have written is through,
//! and the rest is read and dropped, so that the descendant is not hurt.

use std::{io, rc::Rc, time::Duration};

use bytes::Bytes;
use guest_protocol::{
    bytes_json::Base64,
    connect::{self, Code, Error},
    process::{EndEvent, Event, EventMessage, Output},
};
use tokio::time::sleep;

use super::{
    Api,
    streams::{Channel, Source},
    table::Process,
};
use crate::messages::{End, ToInit};

/// Silence after a process's end that means: nothing of its own is left.
const SILENCE: Duration = Duration::from_millis(100);
/// More than a pipe can hold: what comes after is not the process's own.
const LEFT_OVER: u64 = 1024 * 1024;

/// Carries output until both streams are at their end and the process ended.
pub(crate) async fn run(
    api: Rc<Api>,
    process: Rc<Process>,
    sources: Vec<(Channel, Source)>,
    mut ended: tokio::sync::watch::Receiver<Option<End>>,
) {
    {
        let mut drains = sources.into_iter().map(|(channel, source)| {
            let process = process.clone();
            async move { drain(&process, channel, &source).await }
        });
        let (first, second) = (drains.next(), drains.next());
        let both = async {
            tokio::join!(or_nothing(first), or_nothing(second));
        };
        tokio::pin!(both);
        let end = tokio::select! {
            () = &mut both => wait(&mut ended).await,
            end = async {
                let end = wait(&mut ended).await;
                left_over(&process).await;
                end
            } => {
                announce(&api, &process, end);
                both.await;
                end
            }
        };
        announce(&api, &process, end);
    }
    api.tell_init(ToInit::Release { id: process.id }).await;
}

async fn or_nothing(future: Option<impl Future<Output = ()>>) {
    if let Some(future) = future {
        future.await;
    }
}

async fn wait(ended: &mut tokio::sync::watch::Receiver<Option<End>>) -> End {
    match ended.wait_for(Option::is_some).await.map(|end| *end) {
        Ok(Some(end)) => end,
        // The sender lives in the process, which this task holds.
        Ok(None) | Err(_) => End::Signaled(libc::SIGKILL),
    }
}

async fn drain(process: &Process, channel: Channel, source: &Source) {
    loop {
        let piece = match source.read().await {
            Ok(Some(piece)) => piece,
            Ok(None) => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A stream that cannot be read any more is at its end.
            Err(_) => return,
        };
        process.count(piece.len());
        if process.has_listeners() {
            process.tell(&output(channel, piece)).await;
        }
    }
}

/// Waits until what the ended process wrote is through.
async fn left_over(process: &Process) {
    let start = process.read();
    loop {
        let before = process.read();
        sleep(SILENCE).await;
        let now = process.read();
        // A slow listener is not silence.
        let quiet = now == before && !process.is_telling();
        if quiet || now - start > LEFT_OVER {
            return;
        }
    }
}

/// Tells every listener how it ended, once.
fn announce(api: &Rc<Api>, process: &Rc<Process>, end: End) {
    let Some(listeners) = process.close() else { return };
    let last = last_words(end);
    for listener in listeners {
        let last = last.clone();
        // In tasks: a slow one must not keep the end from the others.
        super::task(async move {
            listener.send(last).await.ok();
        });
    }
    api.table.retire(process.clone());
}

/// The end event and the trailer; at the deadline, only an error.
pub(crate) fn last_words(end: End) -> Bytes {
    let Some(event) = end_event(end) else {
        let text = "the process was killed: its deadline has passed";
        return connect::end(Some(&Error::new(Code::DeadlineExceeded, text)));
    };
    let mut words = message(Event::End(event)).to_vec();
    words.extend_from_slice(&connect::end(None));
    words.into()
}

fn end_event(end: End) -> Option<EndEvent> {
    let failed = |exit_code, exited, status: String| {
        Some(EndEvent { exit_code, exited, error: Some(status.clone()), status })
    };
    match end {
        End::Exited(0) => Some(EndEvent {
            exit_code: 0,
            exited: true,
            status: "exit status 0".into(),
            error: None,
        }),
        End::Exited(code) => failed(code, true, format!("exit status {code}")),
        End::Signaled(signal) => failed(-1, false, format!("signal: {}", signal_text(signal))),
        End::Deadline => None,
    }
}

/// What a shell says about a signal.
fn signal_text(signal: i32) -> String {
    let known = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        libc::SIGSYS => "bad system call",
        _ => return format!("signal {signal}"),
    };
    known.to_owned()
}

fn output(channel: Channel, piece: Bytes) -> Bytes {
    let bytes = Base64(piece.into());
    message(Event::Data(match channel {
        Channel::Stdout => Output::Stdout(bytes),
        Channel::Stderr => Output::Stderr(bytes),
        Channel::Terminal => Output::Pty(bytes),
    }))
}

/// A message of a process stream, ready to be sent.
pub(crate) fn message(event: Event) -> Bytes {
    // Numbers, texts and base64 always serialise; an end is what remains.
    connect::message(&EventMessage { event }).unwrap_or_else(|_| connect::end(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_looks_as_the_clients_expect() {
        let failed = end_event(End::Exited(3)).unwrap();
        assert_eq!((failed.exit_code, failed.exited), (3, true));
        assert_eq!(failed.error.as_deref(), Some("exit status 3"));
        let killed = end_event(End::Signaled(9)).unwrap();
        assert_eq!((killed.exit_code, killed.exited), (-1, false));
        assert_eq!(killed.status, "signal: killed");
        assert_eq!(end_event(End::Exited(0)).unwrap().error, None);
        assert_eq!(end_event(End::Deadline), None);
    }
}
