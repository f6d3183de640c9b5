//! The root process: PID 1 of a machine, or the first process of a container.
//!
//! It owns what must not die: the link, the processes and their streams. It
//! parses frames, prefaces, control messages and the API's messages, and
//! nothing that a workload wrote. It never waits for the workload: whatever
//! touches a file that the workload could have replaced happens in a forked
//! child that is given up after a while.
//!
//! It has one thread, because it forks. Blocking calls of the runtime, which
//! would start another, must not be used here.
//!
//! Who is killed when memory runs out: the workload (0), then the API and the
//! relay (-900), never this process (-999).

mod cgroups;
mod child;
mod control;
mod daemons;
mod egress;
mod exec;
mod hosted;
mod identity;
mod machine;
mod modules;
mod mounts;
mod network;
mod parameters;
mod processes;
mod pty;
mod reaper;
mod spare;
mod start;
mod streams;
mod sysctl;
mod volumes;

use std::{
    cell::RefCell,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
};

use tokio::{
    sync::{Semaphore, mpsc},
    task::spawn_local,
};

use self::{cgroups::Cgroups, processes::Processes, reaper::Reaper};
use crate::{account::Known, console, messages::ToApi, port::Port};

/// The link's port on a machine.
const LINK: &str = "coldframe.link";
/// Where the API listens on loopback, for `/health` and `/envs`.
pub(crate) const API_PORT: u16 = 49983;
/// Where the relay listens: named paths, forward proxy.
pub(crate) const RELAY_PORTS: [u16; 2] = [8788, 8789];
/// Where its resolver does, in the modes that have one.
const RESOLVER_PORT: u16 = 53;
/// The ordinary account: workloads run as it unless they ask for another.
pub(crate) const USER: u32 = 1000;
/// Messages that wait for the API while it is being restarted.
const API_QUEUE: usize = 1024;

/// Processes being started at the same time.
const MAX_STARTS: usize = 64;

/// Where init runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// As PID 1 of a virtual machine that is not set up yet.
    Machine,
    /// Inside a container; the link is this Unix socket.
    Hosted(PathBuf),
}

/// Everything init knows. Tasks share it; no borrow lives across a wait.
#[derive(Debug)]
struct Init {
    place: Place,
    /// This program, whatever happens to its name.
    program: OwnedFd,
    /// `/dev/null`, whatever happens to its name.
    null: OwnedFd,
    /// The ordinary account, as it was before any workload.
    known: Option<Known>,
    /// The identity's files; a container has none of its own.
    names: Option<identity::Names>,
    cgroups: Cgroups,
    reaper: Reaper,
    processes: Processes,
    /// Volumes that are held still.
    still: volumes::Still,
    /// Who becomes the next program.
    spare: spare::Place,
    network: network::State,
    egress: egress::Egress,
    settings: RefCell<Settings>,
    to_api: mpsc::Sender<Parcel>,
    /// Places for starts under way: what they hold is as large as the API likes.
    starts: Arc<Semaphore>,
}

/// A message for the API with its descriptors.
type Parcel = (ToApi, Vec<OwnedFd>);

/// What the host said last.
#[derive(Clone, Debug)]
struct Settings {
    environment: Vec<(String, String)>,
    /// What points programs at the relay; weaker than the above.
    hints: Vec<(String, String)>,
    accounts: Vec<u32>,
}

impl Settings {
    /// The variables of a process that starts now.
    fn variables(&self) -> Vec<(String, String)> {
        let own = |name: &str| self.environment.iter().any(|(own, _)| own == name);
        let hints = self.hints.iter().filter(|(name, _)| !own(name));
        hints.chain(&self.environment).cloned().collect()
    }

    fn for_api(&self) -> ToApi {
        ToApi::Identity { environment: self.variables(), accounts: self.accounts.clone() }
    }
}

/// The sockets of the daemons, bound before any workload could take the ports.
#[derive(Debug)]
struct Listeners {
    api: TcpListener,
    relay: [TcpListener; 2],
}

/// Runs until the machine or the container ends.
pub(crate) fn run(place: Place) -> io::Result<()> {
    if place == Place::Machine {
        console::own_the_machine();
    }
    console::catch_panics();
    let outcome = set_up(place).and_then(|(init, listeners, messages)| {
        crate::runtime::run(1, serve(init, listeners, messages))
    });
    match outcome {
        Ok(()) => console::fail("init has nothing left to do"),
        Err(error) => console::fail(&error.to_string()),
    }
}

fn set_up(place: Place) -> io::Result<(Init, Listeners, mpsc::Receiver<Parcel>)> {
    let program = step("find this program", machine::this_program())?;
    let (cgroups, names) = match &place {
        Place::Machine => {
            let (cgroups, names) = machine::set_up()?;
            (cgroups, Some(names))
        }
        Place::Hosted(_) => (hosted::set_up()?, None),
    };
    step("raise the limit of open files", machine::raise_file_limit())?;
    let protected = std::fs::write("/proc/self/oom_score_adj", "-999");
    // A container's host may keep that right to itself.
    if place == Place::Machine {
        step("set the out-of-memory score", protected)?;
    }
    let null = step("open /dev/null", machine::open_null())?;
    let listen = |port: u16| {
        step(
            &format!("listen on port {port}"),
            TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))),
        )
    };
    let [named, proxy] = RELAY_PORTS;
    let listeners = Listeners { api: listen(API_PORT)?, relay: [listen(named)?, listen(proxy)?] };
    let (to_api, messages) = mpsc::channel(API_QUEUE);
    let settings = Settings { environment: Vec::new(), hints: Vec::new(), accounts: vec![1000] };
    let init = Init {
        place,
        program,
        null,
        known: Known::of(USER),
        names,
        cgroups,
        reaper: Reaper::default(),
        processes: Processes::default(),
        still: volumes::Still::default(),
        spare: spare::Place::default(),
        network: network::State::default(),
        egress: egress::Egress::default(),
        settings: RefCell::new(settings),
        to_api,
        starts: Arc::new(Semaphore::new(MAX_STARTS)),
    };
    Ok((init, listeners, messages))
}

async fn serve(
    init: Init,
    listeners: Listeners,
    messages: mpsc::Receiver<Parcel>,
) -> io::Result<()> {
    let init = Rc::new(init);
    let Listeners { api, relay } = listeners;
    let reaping = init.reaper.listen()?;
    step("make a spare process", init.spare.fill(&init))?;
    let reaper = init.clone();
    let reap = async move { reaper.reap(reaping).await };
    let api = daemons::keep_api(init.clone(), api, messages);
    let relay = daemons::keep_relay(init.clone(), relay);
    let link = async {
        match init.place.clone() {
            Place::Machine => {
                let port = Port::open(LINK)?;
                init.egress.watch(port.watch()?);
                streams::serve(init.clone(), port).await
            }
            Place::Hosted(socket) => hosted::listen(init.clone(), &socket).await,
        }
    };
    // The first of them to end says why the machine ends.
    tokio::select! {
        error = reap => Err(error),
        error = api => Err(error),
        error = relay => Err(error),
        ended = link => ended,
    }
}

impl Init {
    /// Reaps children for ever, and removes groups that became empty with them.
    async fn reap(&self, mut signals: reaper::Signals) -> io::Error {
        loop {
            if let Err(error) = self.reaper.collect() {
                return error;
            }
            self.cgroups.sweep();
            if signals.next().await.is_none() {
                return io::Error::other("no more signals");
            }
        }
    }

    /// Queues a message for the API; waits while the queue is full. It is read
    /// for as long as this process lives, through every restart of the API.
    async fn tell_api(&self, message: ToApi, descriptors: Vec<OwnedFd>) {
        self.to_api.send((message, descriptors)).await.ok();
    }
}

/// Names the step in its error: the console line is all an operator will see.
fn step<T>(what: &str, outcome: io::Result<T>) -> io::Result<T> {
    outcome.map_err(|error| io::Error::new(error.kind(), format!("cannot {what}: {error}")))
}

/// Starts a task that belongs to this process's life.
fn task(future: impl Future<Output = ()> + 'static) {
    drop(spawn_local(future));
}
