//! The other processes of the guest: started, watched, started again.
//!
//! A workload that became root can kill them, and a bug can. Either way they
//! come back within milliseconds, later with longer pauses; an API that ends
//! five times in ten seconds is given up, because a machine that looks alive
//! and answers nothing is worse than one that has failed.

use std::{
    collections::VecDeque,
    ffi::CString,
    future::pending,
    io,
    net::TcpListener,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::process::WaitStatus;
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{Init, Parcel, Place, child, egress, exec, start, step};
use crate::{
    channel::{Receiver, Sender, channel},
    console,
    messages::{FromRelay, ToApi, ToInit},
};

/// Ends of the API within [`WINDOW`] after which the machine is given up.
const MOST_ENDS: usize = 5;
const WINDOW: Duration = Duration::from_secs(10);

/// Keeps an API alive; returns why that is no longer possible.
pub(super) async fn keep_api(
    init: Rc<Init>,
    listener: TcpListener,
    mut messages: mpsc::Receiver<Parcel>,
) -> io::Error {
    let mut ends = Ends::default();
    loop {
        let reason = match one_api(&init, &listener, &mut messages).await {
            Ok(reason) => reason,
            Err(error) => error.to_string(),
        };
        console::say(&format!("the guest API has ended ({reason})"));
        match ends.pause(Instant::now()) {
            Some(pause) => sleep(pause).await,
            None => {
                let text = format!("the guest API ended {MOST_ENDS} times in 10 s, last: {reason}");
                return io::Error::other(text);
            }
        }
    }
}

/// Keeps a relay alive. Without one the sandbox still works and nothing leaves
/// it, so it is only tried less often.
pub(super) async fn keep_relay(init: Rc<Init>, listeners: [TcpListener; 2]) -> io::Error {
    let mut ends = Ends::default();
    loop {
        let reason = match one_relay(&init, &listeners).await {
            Ok(reason) => reason,
            Err(error) => error.to_string(),
        };
        console::say(&format!("the relay has ended ({reason})"));
        sleep(ends.pause(Instant::now()).unwrap_or(WINDOW)).await;
    }
}

/// Starts a file worker and returns the other end of its channel.
pub(super) fn start_worker(init: &Rc<Init>, uid: u32) -> io::Result<OwnedFd> {
    if !init.settings.borrow().accounts.contains(&uid) {
        return Err(io::Error::other(format!("account {uid} may not be used in this sandbox")));
    }
    let (near, far) = UnixStream::pair()?;
    let number = CString::new(uid.to_string())?;
    // Never chosen when memory runs out: an upload is then refused instead.
    let arguments = [c"files", number.as_c_str()];
    launch(init, &arguments, &[far.as_fd()], init.cgroups.files(), "-1000")?;
    Ok(near.into())
}

/// One life of the API; returns how it ended.
async fn one_api(
    init: &Rc<Init>,
    listener: &TcpListener,
    messages: &mut mpsc::Receiver<Parcel>,
) -> io::Result<String> {
    let (near, far) = UnixStream::pair()?;
    let descriptors = [far.as_fd(), listener.as_fd()];
    let (_, end) = launch(init, &[c"api"], &descriptors, init.cgroups.daemons(), "-900")?;
    drop(far);
    let (mut sender, receiver) = channel(near)?;
    let talk = async {
        tokio::select! {
            outcome = write(init, &mut sender, messages) => outcome,
            outcome = read(init, receiver) => outcome,
        }
    };
    let ended = live("guest API", end, Box::pin(talk)).await;
    drop(sender);
    Ok(ended)
}

/// One life of the relay; returns how it ended.
async fn one_relay(init: &Rc<Init>, listeners: &[TcpListener; 2]) -> io::Result<String> {
    let (near, far) = UnixStream::pair()?;
    let [named, proxy] = listeners.each_ref().map(|listener| listener.as_fd());
    let descriptors = [far.as_fd(), named, proxy];
    let (_, end) = launch(init, &[c"relay"], &descriptors, init.cgroups.daemons(), "-900")?;
    drop(far);
    let (mut sender, receiver) = channel(near)?;
    let talk = async {
        tokio::select! {
            outcome = instruct(init, &mut sender) => outcome,
            outcome = serve_relay(init, receiver) => outcome,
        }
    };
    Ok(live("relay", end, Box::pin(talk)).await)
}

/// Follows a daemon until it has ended, and says how.
async fn live(
    name: &str,
    end: oneshot::Receiver<WaitStatus>,
    talk: impl Future<Output = io::Result<()>>,
) -> String {
    tokio::pin!(end);
    tokio::select! {
        status = &mut end => return describe(status),
        outcome = talk => if let Err(error) = outcome {
            console::say(&format!("the channel to the {name} failed: {error}"));
        },
    }
    // It said goodbye, or nonsense; without its channel it is of no use.
    tokio::select! {
        status = &mut end => describe(status),
        () = sleep(Duration::from_secs(2)) => "it closed its channel".into(),
    }
}

/// Tells the relay what to serve, now and whenever that changes.
async fn instruct(init: &Rc<Init>, sender: &mut Sender) -> io::Result<()> {
    let mut news = init.network.news();
    loop {
        news.borrow_and_update();
        let (message, sockets) = init.network.message()?;
        let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        sender.send(&message, &sockets).await?;
        // The other end lives as long as this process.
        news.changed().await.map_err(io::Error::other)?;
    }
}

/// Does what the relay asks, until it closes the channel.
async fn serve_relay(init: &Rc<Init>, mut receiver: Receiver) -> io::Result<()> {
    while let Some((message, descriptors)) = receiver.receive::<FromRelay>().await? {
        match message {
            FromRelay::Done { number } => init.network.done(number),
            FromRelay::Carry(opening) => {
                for client in descriptors {
                    egress::carry(init, opening.clone(), client);
                }
            }
            FromRelay::Datagram { opening, program, datagram } => {
                egress::datagram(init, opening, program, datagram);
            }
        }
    }
    Ok(())
}

/// Tells a new API what there is, then whatever is queued.
async fn write(
    init: &Rc<Init>,
    sender: &mut Sender,
    messages: &mut mpsc::Receiver<Parcel>,
) -> io::Result<()> {
    let identity = init.settings.borrow().for_api();
    sender.send(&identity, &[]).await?;
    for (process, streams) in init.processes.copy()? {
        send(sender, (ToApi::Existing(process), streams)).await?;
    }
    while let Some(parcel) = messages.recv().await {
        send(sender, parcel).await?;
    }
    pending().await
}

async fn send(sender: &mut Sender, (message, descriptors): Parcel) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> =
        descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    sender.send(&message, &descriptors).await
}

/// Does what the API asks, until it closes the channel.
async fn read(init: &Rc<Init>, mut receiver: Receiver) -> io::Result<()> {
    while let Some((message, _)) = receiver.receive::<ToInit>().await? {
        match message {
            ToInit::Start { request, start } => {
                // Waiting here makes the API wait; what it is told goes on.
                let Ok(place) = init.starts.clone().acquire_owned().await else { return Ok(()) };
                let init = init.clone();
                super::task(async move {
                    start::answer(init, request, start).await;
                    drop(place);
                });
            }
            ToInit::Signal { id, signal } => {
                if (1..32).contains(&signal) {
                    init.processes.signal(id, signal);
                }
            }
            ToInit::CloseStdin { id } => init.processes.close_stdin(id),
            ToInit::Release { id } => init.processes.release(id),
            ToInit::Worker { request, uid } => {
                let (message, descriptors) = match start_worker(init, uid) {
                    Ok(channel) => (ToApi::Worker { request }, vec![channel]),
                    Err(error) => {
                        (ToApi::NoWorker { request, message: error.to_string() }, Vec::new())
                    }
                };
                // In a task: this loop must never wait for the queue that the
                // API empties only while it is heard.
                let init = init.clone();
                super::task(async move { init.tell_api(message, descriptors).await });
            }
        }
    }
    Ok(())
}

/// Starts this program in another role, with descriptors from 3 on.
fn launch(
    init: &Init,
    role: &[&std::ffi::CStr],
    descriptors: &[BorrowedFd<'_>],
    group: Option<BorrowedFd<'_>>,
    score: &str,
) -> io::Result<(i32, oneshot::Receiver<WaitStatus>)> {
    let pid = child::fork(group, || {
        let error = become_role(init, role, descriptors, score);
        console::say(&format!("cannot start a daemon: {error}"));
        126
    })?;
    Ok((pid, init.reaper.expect(pid)))
}

/// Runs in the child. Returns only on failure.
fn become_role(
    init: &Init,
    role: &[&std::ffi::CStr],
    descriptors: &[BorrowedFd<'_>],
    score: &str,
) -> io::Error {
    let outcome = (|| {
        rustix::process::setsid()?;
        let protected = std::fs::write("/proc/self/oom_score_adj", score);
        if init.place == Place::Machine {
            step("set the out-of-memory score", protected)?;
        }
        place(init.null.as_fd(), 0)?;
        // Out of the way first: a source may sit where a target must go.
        let high = descriptors
            .iter()
            .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 64))
            .collect::<Result<Vec<_>, _>>()?;
        let program = rustix::io::fcntl_dupfd_cloexec(&init.program, 64)?;
        for (descriptor, target) in high.iter().zip(3..) {
            place(descriptor.as_fd(), target)?;
        }
        exec::default_signals();
        Ok::<_, io::Error>(program)
    })();
    let program = match outcome {
        Ok(program) => program,
        Err(error) => return error,
    };
    let arguments: Vec<*const libc::c_char> = std::iter::once(c"guestd".as_ptr())
        .chain(role.iter().map(|word| word.as_ptr()))
        .chain([std::ptr::null()])
        .collect();
    // Nothing of the host's or the sandbox's environment belongs to a daemon.
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor itself; both
    // lists hold C strings that outlive the call and end with a null pointer.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

fn place(source: BorrowedFd<'_>, target: i32) -> io::Result<()> {
    // SAFETY: two descriptor numbers. In the child, whatever held the target is
    // a copy of init's that nothing uses any more.
    let placed = unsafe { libc::dup2(source.as_raw_fd(), target) };
    if placed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn describe(status: Result<WaitStatus, oneshot::error::RecvError>) -> String {
    match status {
        Ok(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown end".into(),
        },
        Err(_) => "unknown end".into(),
    }
}

/// When a daemon ended lately.
#[derive(Debug, Default)]
struct Ends(VecDeque<Instant>);

impl Ends {
    /// Records an end and says how long to pause, or that it is too often.
    fn pause(&mut self, now: Instant) -> Option<Duration> {
        self.0.push_back(now);
        while self.0.front().is_some_and(|end| now.duration_since(*end) > WINDOW) {
            self.0.pop_front();
        }
        let n = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        (self.0.len() < MOST_ENDS).then(|| Duration::from_millis(10 * 4_u64.pow(n - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_ends_in_ten_seconds_are_too_many() {
        let mut ends = Ends::default();
        let start = Instant::now();
        let pauses: Vec<_> = (0..5).map(|n| ends.pause(start + Duration::from_secs(n))).collect();
        let expected = [10, 40, 160, 640].map(|ms| Some(Duration::from_millis(ms)));
        assert_eq!(pauses[..4], expected);
        assert_eq!(pauses[4], None);
    }

    #[test]
    fn old_ends_are_forgotten() {
        let mut ends = Ends::default();
        let start = Instant::now();
        for n in 0..20 {
            assert!(ends.pause(start + Duration::from_secs(n * 3)).is_some());
        }
    }
}
