//! Starting a process, and attending to it until it has ended.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};

use guest_protocol::connect::{Code, Error};
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::WaitStatus,
};
use tokio::{
    net::unix::pipe,
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    Init, child,
    exec::{self, Program, internal},
    pty,
    spare::{Forked, Order},
};
use crate::messages::{End, Process, Start, ToApi, Wiring};

/// From the fork to the program. A start takes milliseconds; what takes longer
/// waits for a file system that the workload serves.
const LIMIT: Duration = Duration::from_secs(10);
/// After an end, until what the next start needs is made: the answer goes first.
const LULL: Duration = Duration::from_millis(20);
/// More than any reason is long.
const MAX_REASON: u64 = 16 * 1024;

/// Starts what the API asks for and answers it.
pub(super) async fn answer(init: Rc<Init>, request: u64, start: Start) {
    match begin(&init, start).await {
        Ok((process, streams)) => {
            init.tell_api(ToApi::Started { request, process }, streams).await;
        }
        Err(Error { code, message }) => {
            init.tell_api(ToApi::NotStarted { request, code, message }, Vec::new()).await;
        }
    }
}

/// Runs a program to its end without anybody listening; for `Warm`.
pub(super) async fn run_silently(init: &Rc<Init>, start: Start) -> Result<(), Error> {
    let ends = Ends { theirs: [None, None, None], ours: Vec::new() };
    let _place = init.processes.reserve().ok_or_else(full)?;
    let Forked { group, ended, .. } = launch(init, &start, ends).await?;
    let outcome = timeout(Duration::from_millis(start.deadline_ms.unwrap_or(60_000)), ended).await;
    group.signal(libc::SIGKILL).ok();
    init.cgroups.retire(group);
    // A template is captured with the next one ready.
    init.spare.fill(init).ok();
    match outcome {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::new(Code::DeadlineExceeded, "a command did not end in time")),
    }
}

/// The descriptors of a process before it exists.
struct Ends {
    /// Standard input, output, error; absent means empty or discarded.
    theirs: [Option<OwnedFd>; 3],
    /// As [`Process`] says.
    ours: Vec<OwnedFd>,
}

async fn begin(init: &Rc<Init>, start: Start) -> Result<(Process, Vec<OwnedFd>), Error> {
    if !init.settings.borrow().accounts.contains(&start.uid) {
        let text = format!("processes may not run as account {} in this sandbox", start.uid);
        return Err(Error::new(Code::PermissionDenied, text));
    }
    let place = init.processes.reserve().ok_or_else(full)?;
    let ends = connect(&start).map_err(|error| internal("make streams", &error))?;
    let ours = ends.ours.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>();
    let ours = ours.map_err(|error| internal("copy streams", &error))?;
    let Start { command, tag, wiring, deadline_ms, .. } = start.clone();
    let Forked { pid, group, ended } = launch(init, &start, ends).await?;
    let process = Process {
        id: place.id,
        pid: pid.unsigned_abs(),
        command: command.for_listing(),
        tag,
        wiring,
        end: None,
    };
    let copies = ours.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>();
    let copies = copies.map_err(|error| internal("copy streams", &error))?;
    init.processes.insert(process.clone(), ours, group);
    super::task(attend(init.clone(), place.id, ended, deadline_ms.map(Duration::from_millis)));
    Ok((process, copies))
}

/// Makes the pipes or the terminal.
fn connect(start: &Start) -> io::Result<Ends> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    if let Wiring::Terminal { cols, rows } = start.wiring {
        let pty::Terminal { master, slave } = pty::open(start.uid, cols, rows)?;
        let theirs = [Some(slave.try_clone()?), Some(slave.try_clone()?), Some(slave)];
        return Ok(Ends { theirs, ours: vec![master] });
    }
    let (output, their_output) = pipe()?;
    let (error, their_error) = pipe()?;
    let mut ends =
        Ends { theirs: [None, Some(their_output), Some(their_error)], ours: vec![output, error] };
    if start.wiring == Wiring::Pipes {
        let (their_input, input) = pipe()?;
        ends.theirs[0] = Some(their_input);
        ends.ours.insert(0, input);
    }
    Ok(ends)
}

/// Lets a child become the program and waits until it has, or says why not.
async fn launch(init: &Init, start: &Start, ends: Ends) -> Result<Forked, Error> {
    let outcome = begin_child(init, start, &ends);
    // Ours are held by the caller; theirs must not stay open here, or no end
    // of file would ever come.
    drop(ends);
    let (mut child, reasons) = outcome.map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM) => {
            Error::new(Code::ResourceExhausted, "the sandbox has no room for another process")
        }
        _ => internal("start a process", &error),
    })?;
    child.group.led_by(child.pid);
    let reason = match timeout(LIMIT, read_reason(reasons)).await {
        Ok(Ok(reason)) if reason.is_empty() => return Ok(child),
        Ok(Ok(reason)) => postcard::from_bytes(&reason)
            .unwrap_or_else(|_| Error::new(Code::Internal, "a process could not be started")),
        Ok(Err(error)) => internal("start a process", &error),
        Err(_) => Error::new(
            Code::DeadlineExceeded,
            format!("the program did not start within {} s", LIMIT.as_secs()),
        ),
    };
    let Forked { group, pid, ended } = child;
    group.signal(libc::SIGKILL).ok();
    init.reaper.kill(pid);
    // It has said why or was killed; only a stuck file system keeps it.
    timeout(LIMIT, ended).await.ok();
    init.cgroups.retire(group);
    Err(reason)
}

/// Takes the child that stands ready, or forks one. The descriptor says why it
/// could not become the program.
fn begin_child(init: &Init, start: &Start, ends: &Ends) -> io::Result<(Forked, OwnedFd)> {
    let (reasons, tell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let streams = ends.theirs.each_ref().map(|end| end.as_ref().unwrap_or(&init.null).as_fd());
    let terminal = matches!(start.wiring, Wiring::Terminal { .. });
    let order = Order {
        uid: start.uid,
        command: start.command.clone(),
        environment: init.settings.borrow().variables(),
        terminal,
    };
    let [input, output, error] = streams;
    if let Some(child) = init.spare.take(init, &order, [input, output, error, tell.as_fd()]) {
        return Ok((child, reasons));
    }
    let program = Program {
        uid: order.uid,
        known: init.known.as_ref(),
        command: &order.command,
        environment: &order.environment,
        streams,
        terminal,
    };
    let group = init.cgroups.make()?;
    let forked = child::fork(group.directory(), || {
        let reason = match exec::separate() {
            Ok(()) => exec::exec(&program),
            Err(error) => exec::internal("separate the process", &error),
        };
        exec::tell(tell.as_fd(), &reason);
        127
    });
    match forked {
        Ok(pid) => Ok((Forked { group, pid, ended: init.reaper.expect(pid) }, reasons)),
        Err(error) => {
            init.cgroups.retire(group);
            Err(error)
        }
    }
}

/// Reads until the child has closed its end, which becoming a program does.
async fn read_reason(reasons: OwnedFd) -> io::Result<Vec<u8>> {
    let reader = pipe::Receiver::from_owned_fd(reasons)?;
    let mut bytes = Vec::new();
    let mut reader = tokio::io::AsyncReadExt::take(reader, MAX_REASON);
    tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut bytes).await?;
    Ok(bytes)
}

/// Waits for the end, or brings it about at the deadline, and tells the API.
async fn attend(
    init: Rc<Init>,
    id: u64,
    mut ended: oneshot::Receiver<WaitStatus>,
    deadline: Option<Duration>,
) {
    let mut late = false;
    let status = match deadline {
        None => (&mut ended).await,
        Some(deadline) => tokio::select! {
            status = &mut ended => status,
            () = sleep(deadline) => {
                late = true;
                init.processes.signal(id, libc::SIGKILL);
                (&mut ended).await
            }
        },
    };
    // The reaper only drops a sender that it has used.
    let Ok(status) = status else { return };
    let end = match (late, status.exit_status(), status.terminating_signal()) {
        (true, ..) => End::Deadline,
        (false, Some(code), _) => End::Exited(code),
        (false, None, signal) => End::Signaled(signal.unwrap_or(libc::SIGKILL)),
    };
    let group = init.processes.end(id, end);
    init.tell_api(ToApi::Ended { id, end }, Vec::new()).await;
    if let Some(group) = group {
        init.cgroups.retire(group);
    }
    // The next start finds one ready; a machine without room makes it then.
    sleep(LULL).await;
    init.spare.fill(&init).ok();
}

fn full() -> Error {
    Error::new(Code::ResourceExhausted, "too many processes were started through the API")
}
