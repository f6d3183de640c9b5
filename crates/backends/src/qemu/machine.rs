//! One live machine: its events, its console, its end.
//!
//! A task holds the connection over which QEMU reports and waits for the
//! machine's first process to end. When the guest shuts down QEMU pauses
//! instead of ending, so that the task can read the last of the console before
//! it lets the machine go. The task ends with this value; the machine does not.
//!
//! All of it works from the sandbox's folder alone, so a machine that an earlier
//! server made is no different.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::{net::Shutdown, process::Signal};
use serde_json::{Value, json};
use tokio::{
    io::unix::AsyncFd,
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    cgroup::Group,
    command::{CONSOLE, CONSOLE_BYTES},
    console::{self, Console},
    link::{LinkPipe, Valve},
    pidfd,
    qmp::{Event, Qmp, QmpError},
    record::Folder,
};

pub(super) mod still;

/// How long QEMU may take to answer a command. It has nothing else to do.
const ANSWER: Duration = Duration::from_secs(10);
/// How long QEMU may take to end when asked.
const GOODBYE: Duration = Duration::from_secs(5);

/// A machine that runs, or did a moment ago.
#[derive(Debug)]
pub(super) struct Machine {
    folder: Folder,
    console: Arc<Mutex<Console>>,
    requests: mpsc::Sender<Request>,
    ended: watch::Receiver<Option<String>>,
    link: Mutex<LinkState>,
    valve: Arc<Valve>,
    /// Held by whoever keeps the machine still, and while a pipe is opened.
    turn: tokio::sync::Mutex<()>,
    /// Counts as used for as long as the machine maps it.
    _basis: Option<Arc<OwnedFd>>,
    /// Stops watching when the value goes. Never stops the machine.
    _task: AbortOnDropHandle<()>,
}

/// What a machine's task is asked for.
#[derive(Debug)]
enum Request {
    /// To read the console.
    Console(oneshot::Sender<()>),
    /// To tell QEMU something.
    Command(Command),
}

#[derive(Debug)]
struct Command {
    name: &'static str,
    arguments: Value,
    descriptor: Option<OwnedFd>,
    done: oneshot::Sender<Result<Value, QmpError>>,
}

/// A machine to watch.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) folder: Folder,
    pub(super) group: Group,
    pub(super) process: OwnedFd,
    /// Connections from when it was made.
    pub(super) fresh: Option<(Qmp, UnixStream)>,
    /// The memory of the snapshot that it was started from.
    pub(super) basis: Option<Arc<OwnedFd>>,
}

/// What is known about the connection to the guest.
#[derive(Debug, Default)]
struct LinkState {
    /// Connected while the machine was made, not handed out yet.
    prepared: Option<UnixStream>,
    /// Handed out last.
    current: Weak<OwnedFd>,
}

impl Machine {
    /// Watches a machine. One that an earlier server made is connected to when
    /// that is needed.
    pub(super) fn watch(found: Found) -> io::Result<Self> {
        let Found { folder, group, process, fresh, basis } = found;
        let (qmp, link) = fresh.unzip();
        let process = pidfd::watch(process)?;
        let console = Arc::new(Mutex::new(Console::load(&folder.console())));
        let (requests, asked) = mpsc::channel(4);
        let (announce, ended) = watch::channel(None);
        let task =
            Task { folder: folder.clone(), group, process, console: Arc::clone(&console), asked };
        let task = tokio::spawn(async move {
            let reason = task.run(qmp).await;
            announce.send_replace(Some(reason));
        });
        Ok(Self {
            folder,
            console,
            requests,
            ended,
            link: Mutex::new(LinkState { prepared: link, current: Weak::new() }),
            valve: Arc::default(),
            turn: tokio::sync::Mutex::new(()),
            _basis: basis,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Opens the pipe to the guest. The last one that was opened ends.
    pub(super) async fn connect(&self) -> io::Result<LinkPipe> {
        let _turn = self.turn.lock().await;
        let prepared = {
            let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(old) = link.current.upgrade() {
                // QEMU serves the next client when it sees that the last has
                // left. One that has left already cannot be shut down again.
                rustix::net::shutdown(&old, Shutdown::Both).unwrap_or_default();
            }
            link.prepared.take()
        };
        let stream = match prepared {
            Some(stream) => stream,
            None => UnixStream::connect(self.folder.link()).await?,
        };
        let pipe = LinkPipe::new(stream, Arc::clone(&self.valve))?;
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.current = pipe.handle();
        Ok(pipe)
    }

    /// Waits for the end and says why.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let reason = match ended.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_) => None,
        };
        reason.unwrap_or_else(|| "nobody watched the machine's end".to_owned())
    }

    /// The last output of the console.
    pub(super) async fn console(&self) -> Vec<u8> {
        let (done, read) = oneshot::channel();
        // A machine that has ended has nothing new to say.
        if self.requests.send(Request::Console(done)).await.is_ok() {
            read.await.unwrap_or_default();
        }
        self.console.lock().unwrap_or_else(PoisonError::into_inner).bytes().to_vec()
    }

    /// Waits for whoever keeps the machine still, and keeps others from it.
    pub(super) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Tells QEMU something, with a descriptor beside it, and waits for its
    /// answer.
    pub(super) async fn command(
        &self,
        name: &'static str,
        arguments: Value,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, QmpError> {
        let gone = || QmpError::Broken(io::ErrorKind::NotConnected.into());
        let (done, answer) = oneshot::channel();
        let command = Command { name, arguments, descriptor, done };
        self.requests.send(Request::Command(command)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The part of a machine that runs.
struct Task {
    folder: Folder,
    group: Group,
    process: AsyncFd<OwnedFd>,
    console: Arc<Mutex<Console>>,
    asked: mpsc::Receiver<Request>,
}

impl Task {
    async fn run(mut self, qmp: Option<Qmp>) -> String {
        let mut qmp = match qmp {
            Some(qmp) => Some(qmp),
            None => self.reconnect().await,
        };
        // It may have stopped while nobody watched.
        let mut cause = match &mut qmp {
            Some(qmp) => stopped(qmp).await,
            None => None,
        };
        while cause.is_none() {
            tokio::select! {
                _ = self.process.readable() => break,
                event = next_event(&mut qmp) => match event {
                    Ok(event) => cause = cause_of(&event),
                    Err(_) => qmp = None,
                },
                Some(request) = self.asked.recv() => self.obey(request, &mut qmp).await,
            }
        }
        if let Some(cause) = cause {
            self.read_console(&mut qmp).await;
            self.let_go(&mut qmp).await;
            return self.with_last_line(cause);
        }
        self.cause_of_end()
    }

    /// Connects to a machine that an earlier server made.
    async fn reconnect(&self) -> Option<Qmp> {
        let mut qmp = Qmp::connect(&self.folder.qmp()).await.ok()?;
        // The old server's connection may not be closed on the other side yet.
        qmp.answer("qmp_capabilities", ANSWER).await.ok()?;
        Some(qmp)
    }

    /// Whoever asked may have stopped waiting; that harms nobody.
    async fn obey(&self, request: Request, qmp: &mut Option<Qmp>) {
        match request {
            Request::Console(done) => {
                self.read_console(qmp).await;
                done.send(()).unwrap_or_default();
            }
            Request::Command(Command { name, arguments, descriptor, done }) => {
                let answer = match qmp {
                    Some(qmp) => tell(qmp, name, arguments, descriptor).await,
                    None => Err(QmpError::Broken(io::ErrorKind::NotConnected.into())),
                };
                drop(done.send(answer));
            }
        }
    }

    /// Empties QEMU's ring into ours.
    async fn read_console(&self, qmp: &mut Option<Qmp>) {
        let Some(qmp) = qmp else { return };
        let size = json!({ "device": CONSOLE, "size": CONSOLE_BYTES, "format": "base64" });
        let Ok(answer) = qmp.execute("ringbuf-read", size, ANSWER).await else { return };
        let bytes = answer.as_str().and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.unwrap_or_default();
        if bytes.is_empty() {
            return;
        }
        let mut console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        console.push(&bytes);
        // Only the next server would miss it.
        std::fs::write(self.folder.console(), console.bytes()).unwrap_or_default();
    }

    /// Ends a machine that has nothing left to do.
    async fn let_go(&self, qmp: &mut Option<Qmp>) {
        if let Some(qmp) = qmp {
            // QEMU may end before it answers.
            qmp.execute("quit", json!({}), ANSWER).await.ok();
        }
        if tokio::time::timeout(GOODBYE, self.process.readable()).await.is_err() {
            let process = self.process.get_ref();
            // If even this fails, removing the sandbox will tell.
            rustix::process::pidfd_send_signal(process, Signal::KILL).unwrap_or_default();
            tokio::time::timeout(GOODBYE, self.process.readable()).await.ok();
        }
        pidfd::take_status(self.process.get_ref());
    }

    fn cause_of_end(&self) -> String {
        let status = pidfd::take_status(self.process.get_ref());
        if self.group.out_of_memory() > 0 {
            return "the machine took more memory of the host than was set aside for it".into();
        }
        let complaint = std::fs::read(self.folder.complaints()).unwrap_or_default();
        let complaint = console::last_line(&complaint);
        let complaint = complaint.map(|line| format!(": {line}")).unwrap_or_default();
        match status {
            Some(status) => match (status.terminating_signal(), status.exit_status()) {
                (Some(signal), _) => format!("the machine was ended by signal {signal}{complaint}"),
                (_, Some(code)) => format!("the machine ended with code {code}{complaint}"),
                _ => format!("the machine ended{complaint}"),
            },
            None => format!("the machine ended{complaint}"),
        }
    }

    fn with_last_line(&self, cause: String) -> String {
        let console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        match console.last_words() {
            Some(line) => format!("{cause}; its console said last: \"{line}\""),
            None => cause,
        }
    }
}

async fn tell(
    qmp: &mut Qmp,
    name: &'static str,
    arguments: Value,
    descriptor: Option<OwnedFd>,
) -> Result<Value, QmpError> {
    match descriptor {
        Some(descriptor) => qmp.send_with(name, arguments, descriptor.as_fd()).await?,
        None => qmp.send(name, arguments).await?,
    }
    qmp.answer(name, ANSWER).await
}

/// The next event; never, without a connection.
async fn next_event(qmp: &mut Option<Qmp>) -> io::Result<Event> {
    match qmp {
        Some(qmp) => qmp.event().await,
        None => std::future::pending().await,
    }
}

/// Why the machine will not go on, if that is what the event says.
fn cause_of(event: &Event) -> Option<String> {
    match event.name.as_str() {
        "SHUTDOWN" => Some(match event.text("reason") {
            "guest-shutdown" => "the machine shut itself down".to_owned(),
            "guest-reset" => "the machine restarted itself or its kernel panicked".to_owned(),
            "guest-panic" => "the machine's kernel panicked".to_owned(),
            other => format!("the machine was shut down ({other})"),
        }),
        "GUEST_PANICKED" => Some("the machine's kernel panicked".to_owned()),
        _ => None,
    }
}

/// Why the machine does not run now, if it does not.
async fn stopped(qmp: &mut Qmp) -> Option<String> {
    let answer = qmp.execute("query-status", json!({}), ANSWER).await;
    let status = match &answer {
        Ok(answer) => answer.get("status").and_then(|status| status.as_str()).unwrap_or_default(),
        Err(QmpError::Refused { .. } | QmpError::Broken(_) | QmpError::TimedOut { .. }) => "",
    };
    match status {
        "shutdown" => Some("the machine shut itself down".to_owned()),
        "guest-panicked" => Some("the machine's kernel panicked".to_owned()),
        "internal-error" | "io-error" => Some("the machine met an internal error".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, reason: &str) -> Event {
        let data = json!({ "reason": reason }).as_object().unwrap().clone();
        Event { name: name.into(), data }
    }

    #[test]
    fn a_machine_that_stops_says_so_and_one_that_resumes_does_not() {
        let cause = cause_of(&event("SHUTDOWN", "guest-reset"));
        assert_eq!(cause.as_deref(), Some("the machine restarted itself or its kernel panicked"));
        assert_eq!(cause_of(&event("RESUME", "")), None);
        assert_eq!(cause_of(&event("STOP", "")), None);
    }
}
