//! Streams to the gateway: opened for the relay, and joined to its clients.
//!
//! The relay knows who asks for what; this knows the link. It passes a client's
//! socket and what to say, and has no part in what follows, so a relay that is
//! killed breaks nothing off, and no byte is copied twice.
//!
//! What a client gets without a stream is a reset, at once: when the mode has no
//! such front, when its account has its share, when the link is gone, when the
//! gateway says no.

mod flows;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    net::TcpStream as StdTcpStream,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    rc::Rc,
    time::Duration,
};

use guest_protocol::{
    control::Mode,
    egress::{self, Front, Opening, Verdict},
    mux::{Opener, Stream},
    preface::{self, Preface},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::timeout,
};

pub(super) use self::flows::datagram;
use super::{Init, network::captures};
use crate::splice;

/// Streams at the same time. Each may hold 256 KiB of what its client does not
/// read, in the memory that is kept back for this process.
const MOST: usize = 128;
/// Of these, one account's, so that another always finds some.
const SHARE: usize = 96;
/// How long the host may take to accept a stream.
const OPEN: Duration = Duration::from_secs(10);
/// How long the gateway may take to connect, or somebody to be asked.
const VERDICT: Duration = Duration::from_secs(120);

/// The streams under way.
#[derive(Debug, Default)]
pub(super) struct Egress {
    mode: Cell<Mode>,
    opener: RefCell<Option<Opener>>,
    /// The port of the link, to see whether a host is there.
    port: RefCell<Option<OwnedFd>>,
    /// Streams by account.
    load: RefCell<HashMap<Option<u32>, usize>>,
    tasks: RefCell<JoinSet<()>>,
    flows: flows::Flows,
}

impl Egress {
    /// Begins to use a new session. Streams of the last end with it.
    pub(super) fn connected(&self, opener: Opener) {
        *self.opener.borrow_mut() = Some(opener);
    }

    /// Remembers the port of the link.
    pub(super) fn watch(&self, port: OwnedFd) {
        *self.port.borrow_mut() = Some(port);
    }

    /// Changes what may be opened. What a lower mode may not have ends.
    pub(super) fn permit(&self, mode: Mode) {
        if mode < self.mode.replace(mode) {
            self.tasks.borrow_mut().abort_all();
        }
    }

    /// A way to open a stream, if there is a host to answer.
    fn opener(&self) -> io::Result<Opener> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        if let Some(port) = &*self.port.borrow() {
            let mut ports = [PollFd::new(port, PollFlags::OUT)];
            poll(&mut ports, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if ports[0].revents().contains(PollFlags::HUP) {
                return Err(gone());
            }
        }
        self.opener.borrow().clone().ok_or_else(gone)
    }

    /// Runs a stream to its end.
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(task);
    }
}

/// One account's use of one stream.
#[derive(Debug)]
struct Place {
    init: Rc<Init>,
    uid: Option<u32>,
}

impl Place {
    fn take(init: &Rc<Init>, uid: Option<u32>) -> Option<Self> {
        let mut load = init.egress.load.borrow_mut();
        let all: usize = load.values().sum();
        let own = load.entry(uid).or_default();
        if all >= MOST || *own >= SHARE {
            return None;
        }
        *own += 1;
        Some(Self { init: init.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut load = self.init.egress.load.borrow_mut();
        if let Some(own) = load.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                load.remove(&self.uid);
            }
        }
    }
}

/// Whether a mode has a front.
fn has(mode: Mode, front: &Front) -> bool {
    match front {
        Front::Named => mode >= Mode::Brokered,
        Front::Proxy | Front::Captured(_) | Front::Dns => captures(mode),
        Front::Udp(_) => mode == Mode::Open,
    }
}

/// Joins a client of the relay to a new stream.
pub(super) fn carry(init: &Rc<Init>, opening: Opening, client: OwnedFd) {
    let place = has(init.egress.mode.get(), &opening.front)
        .then(|| Place::take(init, opening.uid))
        .flatten();
    let Some(place) = place else { return reset(client) };
    init.egress.spawn(async move {
        // The end of one stream concerns its client, which sees it.
        let carried = match opening.front {
            Front::Dns => match unix(client) {
                Ok(client) => attend(&place, &opening, client).await,
                Err(error) => Err(error),
            },
            _ => match tcp(client) {
                Ok(client) => attend(&place, &opening, client).await,
                Err(error) => Err(error),
            },
        };
        drop((carried, place));
    });
}

/// Opens the stream and copies until both sides are done.
async fn attend<C>(place: &Place, opening: &Opening, client: C) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + AsFd + Unpin,
{
    // A client that is dropped without having come to its end is reset.
    let mut client = Resets(Some(client));
    let Some(socket) = &mut client.0 else { return Ok(()) };
    let mut stream = open(&place.init, opening).await?;
    if matches!(opening.front, Front::Captured(_)) {
        verdict(&mut stream).await?;
    }
    splice::join(socket, &mut stream).await?;
    drop(client.0.take());
    Ok(())
}

async fn open(init: &Init, opening: &Opening) -> io::Result<Stream> {
    let opener = init.egress.opener()?;
    let opening = async {
        let mut stream = opener.open().await?;
        preface::write(&mut stream, Preface::Egress).await?;
        egress::write(&mut stream, opening).await?;
        Ok(stream)
    };
    timeout(OPEN, opening).await.map_err(io::Error::other)?
}

async fn verdict(stream: &mut Stream) -> io::Result<()> {
    match timeout(VERDICT, egress::read(stream)).await.map_err(io::Error::other)?? {
        Verdict::Open => Ok(()),
        Verdict::Refused { code } => Err(io::Error::new(io::ErrorKind::PermissionDenied, code)),
    }
}

fn unix(client: OwnedFd) -> io::Result<UnixStream> {
    let client = StdUnixStream::from(client);
    client.set_nonblocking(true)?;
    UnixStream::from_std(client)
}

fn tcp(client: OwnedFd) -> io::Result<TcpStream> {
    let client = StdTcpStream::from(client);
    client.set_nonblocking(true)?;
    client.set_nodelay(true)?;
    TcpStream::from_std(client)
}

/// A client that is reset unless it is taken out.
struct Resets<C: AsFd>(Option<C>);

impl<C: AsFd> Drop for Resets<C> {
    fn drop(&mut self) {
        if let Some(client) = &self.0 {
            sockopt::set_socket_linger(client, Some(Duration::ZERO)).ok();
        }
    }
}

fn reset(client: OwnedFd) {
    drop(Resets(Some(client)));
}

#[cfg(test)]
mod tests {
    use guest_protocol::egress::Destination;

    use super::*;

    /// S9, U24: what each mode has, front by front.
    #[test]
    fn a_mode_has_its_fronts_and_no_others() {
        let address = "192.0.2.1:80".parse().unwrap();
        let fronts = [
            (Front::Named, Mode::Brokered),
            (Front::Proxy, Mode::Restricted),
            (Front::Captured(Destination::Address(address)), Mode::Restricted),
            (Front::Dns, Mode::Restricted),
            (Front::Udp(address), Mode::Open),
        ];
        let modes = [Mode::Off, Mode::Brokered, Mode::Restricted, Mode::Mediated, Mode::Open];
        for (front, least) in fronts {
            for mode in modes {
                assert_eq!(has(mode, &front), mode >= least, "{front:?} in {mode:?}");
            }
        }
    }
}
