//! The guest API: HTTP on connections of the host, and on loopback the little
//! that programs inside may know.
//!
//! ```text
//!  init ──connections, process events──► API ──connections──► file workers
//!       ◄──start, signal, release──────
//! ```
//!
//! It runs under an account of its own without any right. It parses what comes
//! from the host, decides which account a request works as, and lets init or a
//! file worker do it. Authentication is the host's: whoever reaches this over
//! the link has passed it.
//!
//! Its state can be lost at any time: init tells a new API what runs.

mod forward;
mod health;
mod loopback;
mod metrics;
mod process;
mod pump;
mod router;
mod streams;
mod table;
mod users;

use std::{
    cell::{Cell, RefCell},
    io,
    net::TcpListener,
    os::{
        fd::{BorrowedFd, FromRawFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    rc::Rc,
};

use tokio::{sync::mpsc, task::spawn_local};

use self::{forward::Workers, metrics::Meter, router::Room, table::Table, users::Readers};
use crate::{
    channel::{Receiver, Sender, channel},
    messages::{ToApi, ToInit},
};

/// The account of the API.
const UID: u32 = 990;
/// Messages that wait for init.
const QUEUE: usize = 1024;

/// What the API knows.
#[derive(Debug)]
struct Api {
    to_init: mpsc::Sender<ToInit>,
    last_request: Cell<u64>,
    environment: RefCell<Vec<(String, String)>>,
    accounts: RefCell<Vec<u32>>,
    table: Table,
    workers: Workers,
    meter: Meter,
    readers: Readers,
    room: Room,
}

/// Runs the API with the channel and the listener that init passed.
pub(crate) fn run() -> io::Result<()> {
    crate::privilege::give_up_everything(UID, UID, &[])?;
    // SAFETY: init passes a socket and a listener to this role as the descriptors
    // 3 and 4, and nothing else in this process has taken them.
    let (stream, listener) = unsafe {
        (StdStream::from(OwnedFd::from_raw_fd(3)), TcpListener::from(OwnedFd::from_raw_fd(4)))
    };
    crate::runtime::run(users::THREADS, async {
        let (sender, receiver) = channel(stream)?;
        let (to_init, queue) = mpsc::channel(QUEUE);
        let api = Rc::new(Api {
            to_init,
            // Apart from those of an earlier API, whose answers may still come.
            last_request: Cell::new(u64::from(std::process::id()) << 32),
            environment: RefCell::default(),
            accounts: RefCell::default(),
            table: Table::default(),
            workers: Workers::default(),
            meter: Meter::default(),
            readers: Readers::default(),
            room: Room::default(),
        });
        // The first to end ends the process, and init starts a new one.
        tokio::try_join!(
            tell(sender, queue),
            hear(api.clone(), receiver),
            loopback::serve(api, listener)
        )
        .map(drop)
    })
}

async fn tell(mut sender: Sender, mut queue: mpsc::Receiver<ToInit>) -> io::Result<()> {
    while let Some(message) = queue.recv().await {
        sender.send(&message, &[] as &[BorrowedFd<'_>]).await?;
    }
    Ok(())
}

/// Takes in what init says. Never waits for anything but init: what takes time
/// is a task.
async fn hear(api: Rc<Api>, mut receiver: Receiver) -> io::Result<()> {
    while let Some((message, descriptors)) = receiver.receive::<ToApi>().await? {
        match message {
            ToApi::Connection => {
                for descriptor in descriptors {
                    task(router::serve(api.clone(), descriptor));
                }
            }
            ToApi::Identity { environment, accounts } => {
                *api.environment.borrow_mut() = environment;
                *api.accounts.borrow_mut() = accounts;
                let api = api.clone();
                task(async move {
                    if let Ok(uid) = api.account(None).await {
                        api.workers.prepare(&api, uid).await;
                    }
                });
            }
            ToApi::Started { request, process } => {
                api.table.started(&api, request, process, descriptors)?;
            }
            ToApi::NotStarted { request, code, message } => {
                api.table.not_started(request, code, message);
            }
            ToApi::Existing(process) => api.table.existing(&api, process, descriptors)?,
            ToApi::Ended { id, end } => api.table.ended(id, end),
            ToApi::Worker { request } => {
                let worker = descriptors.into_iter().next();
                api.workers.arrived(request, worker.ok_or("no channel came".to_owned()));
            }
            ToApi::NoWorker { request, message } => api.workers.arrived(request, Err(message)),
        }
    }
    Err(io::Error::other("init closed the channel"))
}

impl Api {
    fn next_request(&self) -> u64 {
        self.last_request.set(self.last_request.get() + 1);
        self.last_request.get()
    }

    /// Queues a message for init; waits while the queue is full.
    async fn tell_init(&self, message: ToInit) {
        // The queue is gone only when the process is about to be.
        self.to_init.send(message).await.ok();
    }
}

/// Starts a task that belongs to this process's life.
fn task(future: impl Future<Output = ()> + 'static) {
    drop(spawn_local(future));
}
