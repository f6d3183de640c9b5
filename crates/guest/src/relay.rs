//! The relay: where programs inside ask for the outside.
//!
//! ```text
//!  8788, named paths ─┐
//!  8789, proxy ───────┤  whose socket is it?      init ──► a stream to the
//!  captured TCP ──────┼─ which name was meant? ──►         gateway, joined to
//!  captured UDP ──────┤                                    the client's socket
//!  resolver ──────────┘
//! ```
//!
//! It decides nothing: it says who asks for what, and the gateway answers. It
//! parses no HTTP, holds no secret, owns no right, and opens nothing itself. All
//! that reaches it comes from the workload, so what waits is bounded everywhere.
//! Its one memory is which address stands for which name.

mod datagram;
mod dns;
pub(crate) mod names;
mod owner;
mod refusal;
mod resolver;

use std::{
    cell::{Cell, RefCell},
    io,
    net::{SocketAddr, TcpListener as StdListener},
    os::{
        fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use guest_protocol::{
    control::Mode,
    egress::{Destination, Front, Opening},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use self::{
    datagram::Datagrams,
    names::Names,
    owner::{Owners, Protocol},
};
use crate::{
    channel::{Receiver, Sender, channel},
    messages::{FromRelay, ToRelay},
};

/// The account of the relay.
pub(crate) const UID: u32 = 991;
/// Connections that are being refused at the same time; more wait in the backlog.
const MAX_REFUSALS: usize = 64;
/// Clients that wait for init, which takes them as they come.
const QUEUE: usize = 16;
/// The largest datagram.
const MAX_DATAGRAM: usize = 65_535;

/// What the relay knows.
#[derive(Debug)]
struct Relay {
    to_init: mpsc::Sender<Parcel>,
    mode: Cell<Mode>,
    names: RefCell<Names>,
    owners: Owners,
    refusals: Arc<Semaphore>,
    questions: resolver::Questions,
}

/// A message for init with its descriptors.
type Parcel = (FromRelay, Option<OwnedFd>);

/// Runs the relay with the channel and the two listeners that init passed.
pub(crate) fn run() -> io::Result<()> {
    crate::privilege::give_up_everything(UID, UID, &[])?;
    // SAFETY: init passes exactly a socket and two listeners to this role, as the
    // descriptors 3 to 5, and nothing else in this process has taken them.
    let [stream, named, proxy] = [3, 4, 5].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    crate::runtime::run(1, async {
        let (sender, receiver) = channel(StdStream::from(stream))?;
        let (to_init, queue) = mpsc::channel(QUEUE);
        let relay = Rc::new(Relay {
            to_init,
            mode: Cell::default(),
            names: RefCell::default(),
            owners: Owners::open()?,
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            questions: resolver::Questions::default(),
        });
        // The first to end ends the process, and init starts a new one.
        tokio::try_join!(
            tell(sender, queue),
            hear(relay.clone(), receiver),
            fixed(relay.clone(), named, Front::Named),
            fixed(relay, proxy, Front::Proxy),
        )
        .map(drop)
    })
}

async fn tell(mut sender: Sender, mut queue: mpsc::Receiver<Parcel>) -> io::Result<()> {
    while let Some((message, descriptor)) = queue.recv().await {
        let descriptors: Vec<BorrowedFd<'_>> =
            descriptor.iter().map(|descriptor| descriptor.as_fd()).collect();
        sender.send(&message, &descriptors).await?;
    }
    Ok(())
}

/// Does what init says, which is what the host says.
async fn hear(relay: Rc<Relay>, mut receiver: Receiver) -> io::Result<()> {
    let mut listening = JoinSet::new();
    while let Some((ToRelay::Network { number, mode }, sockets)) = receiver.receive().await? {
        // What was accepted is init's by now; what waits in a backlog stays there.
        listening.shutdown().await;
        relay.mode.set(mode);
        for (slot, socket) in sockets.into_iter().enumerate() {
            listen(&relay, &mut listening, slot, socket)?;
        }
        relay.tell_init(FromRelay::Done { number }, None).await;
    }
    Err(io::Error::other("init closed the channel"))
}

/// Begins to serve a socket of the capture, known by its slot in the kernel.
fn listen(
    relay: &Rc<Relay>,
    tasks: &mut JoinSet<()>,
    slot: usize,
    socket: OwnedFd,
) -> io::Result<()> {
    let relay = relay.clone();
    match slot % 4 {
        0 => {
            let listener = tcp(socket)?;
            tasks.spawn_local(async move { capture(&relay, listener).await });
        }
        1 => {
            let listener = tcp(socket)?;
            tasks.spawn_local(resolver::serve_tcp(relay, listener));
        }
        2 => {
            let socket = Datagrams::new(socket)?;
            tasks.spawn_local(async move { datagrams(&relay, socket).await });
        }
        _ => {
            let socket = Datagrams::new(socket)?;
            tasks.spawn_local(resolver::serve_udp(relay, Rc::new(socket)));
        }
    }
    Ok(())
}

/// Serves one of the two ports that are always there.
async fn fixed(relay: Rc<Relay>, listener: OwnedFd, front: Front) -> io::Result<()> {
    let least = if front == Front::Named { Mode::Brokered } else { Mode::Restricted };
    let listener = tcp(listener)?;
    loop {
        let (client, program) = accept(&listener).await;
        let mode = relay.mode.get();
        if mode >= least {
            relay.carry(client, program, front.clone()).await;
            continue;
        }
        // The semaphore is never closed.
        let Ok(place) = relay.refusals.clone().acquire_owned().await else { return Ok(()) };
        task(async move {
            refusal::answer(client, mode).await;
            drop(place);
        });
    }
}

/// Takes connections to everywhere.
async fn capture(relay: &Relay, listener: TcpListener) {
    loop {
        let (client, program) = accept(&listener).await;
        // Its own address is the one that the program wanted.
        let Ok(wanted) = client.local_addr() else { continue };
        let front = Front::Captured(relay.destination(owner::plain(wanted)));
        relay.carry(client, program, front).await;
    }
}

/// Takes datagrams to everywhere; of each pair only the first, as a rule.
async fn datagrams(relay: &Relay, socket: Datagrams) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let Ok((n, between)) = socket.receive(&mut buffer).await else {
            pause().await;
            continue;
        };
        let uid = relay.owners.of(Protocol::Udp, between.program, between.outside);
        let opening = Opening { uid, front: Front::Udp(between.outside) };
        let (program, datagram) = (between.program, buffer[..n].to_vec());
        relay.tell_init(FromRelay::Datagram { opening, program, datagram }, None).await;
    }
}

impl Relay {
    /// Gives a client to init, with who it is and what it wants.
    async fn carry(&self, client: TcpStream, program: SocketAddr, front: Front) {
        let Ok(here) = client.local_addr() else { return };
        let uid = self.owners.of(Protocol::Tcp, owner::plain(program), owner::plain(here));
        let Ok(client) = client.into_std() else { return };
        self.tell_init(FromRelay::Carry(Opening { uid, front }), Some(client.into())).await;
    }

    fn destination(&self, wanted: SocketAddr) -> Destination {
        match self.names.borrow_mut().name(wanted.ip()) {
            Some(name) => Destination::Name { name: name.to_string(), port: wanted.port() },
            None => Destination::Address(wanted),
        }
    }

    /// Queues a message for init; waits while the queue is full.
    async fn tell_init(&self, message: FromRelay, descriptor: Option<OwnedFd>) {
        // The queue is gone only when the process is about to be.
        self.to_init.send((message, descriptor)).await.ok();
    }
}

fn tcp(listener: OwnedFd) -> io::Result<TcpListener> {
    let listener = StdListener::from(listener);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Accepts the next connection.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(_) => pause().await,
        }
    }
}

/// A failed accept says nothing about the next one, but it may repeat at once.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Starts a task that belongs to this process's life.
fn task(future: impl Future<Output = ()> + 'static) {
    drop(tokio::task::spawn_local(future));
}
