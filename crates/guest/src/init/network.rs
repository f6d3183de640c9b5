//! The network that programs inside see. There is no device but loopback.
//!
//! ```text
//!  off, brokered                loopback, and the relay's ports on it
//!  restricted, mediated, open   every address is local, for TCP and for UDP to
//!                               port 53 (in `open` for all of it), and a program
//!                               in the kernel hands what comes to the relay
//! ```
//!
//! What has no rule has no route: a ping, a raw packet, other UDP fail at once.
//! A change is made whole or not at all: whatever fails, mode `off` is what is
//! left, and the host is told. While a change is under way, less is possible,
//! never more.

pub(super) mod lookup;
mod netlink;
pub(super) mod sockets;

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    rc::Rc,
    time::Duration,
};

use guest_protocol::control::{self, Mode};
use rustix::net::{AddressFamily, SocketType};
use tokio::{
    sync::{Mutex, watch},
    time::timeout,
};

use self::{
    lookup::{Lookup, SLOTS, UDP},
    netlink::{Entry, FAMILIES, Netlink},
};
use super::{Init, identity, step};
use crate::messages::ToRelay;

/// How long the relay may take to do as told, a restart included.
const RELAY: Duration = Duration::from_secs(10);

/// What programs see now.
#[derive(Debug)]
pub(super) struct State {
    /// One change at a time.
    turn: Mutex<()>,
    mode: Cell<Mode>,
    capture: RefCell<Option<Capture>>,
    /// Counts what the relay is told.
    told: watch::Sender<u64>,
    /// The last of it that the relay has done.
    done: watch::Sender<u64>,
}

/// What captures; dropping it ends the program in the kernel.
#[derive(Debug)]
struct Capture {
    lookup: Lookup,
    sockets: [OwnedFd; SLOTS],
}

impl Default for State {
    fn default() -> Self {
        Self {
            turn: Mutex::default(),
            mode: Cell::default(),
            capture: RefCell::default(),
            told: watch::Sender::new(0),
            done: watch::Sender::new(0),
        }
    }
}

impl State {
    /// What the relay should know, and a way to hear of the next.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.told.subscribe()
    }

    /// What the relay is told now, with copies of the sockets it serves.
    pub(super) fn message(&self) -> io::Result<(ToRelay, Vec<OwnedFd>)> {
        let capture = self.capture.borrow();
        let sockets = capture.iter().flat_map(|capture| &capture.sockets);
        let sockets = sockets.map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let number = *self.told.borrow();
        Ok((ToRelay::Network { number, mode: self.mode.get() }, sockets))
    }

    /// The relay has done what it was told.
    pub(super) fn done(&self, number: u64) {
        self.done.send_replace(number);
    }

    /// Tells the relay, and waits until it has done it.
    async fn tell_relay(&self) -> io::Result<()> {
        let mut done = self.done.subscribe();
        let number = *self.told.borrow() + 1;
        self.told.send_replace(number);
        let waiting = done.wait_for(|done| *done >= number);
        match timeout(RELAY, waiting).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(io::Error::other("the relay does not answer")),
        }
    }

    /// Takes everything away. What cannot be removed leads nowhere without the
    /// program, and to nobody without the sockets.
    fn withdraw(&self) -> io::Result<()> {
        let had = self.capture.take().is_some();
        self.mode.set(Mode::Off);
        self.told.send_modify(|number| *number += 1);
        if had { remove_routes() } else { Ok(()) }
    }
}

/// Changes what programs see; on a failure to what mode `off` is.
pub(super) async fn change(init: &Rc<Init>, network: control::Network) -> io::Result<()> {
    let state = &init.network;
    let _turn = state.turn.lock().await;
    identity::check_variables(&network.environment)?;
    // Told again, as at every start: nothing is to be done.
    if network.mode == state.mode.get() && network.environment == init.settings.borrow().hints {
        return Ok(());
    }
    // Until it is done, nothing opens that either mode forbids.
    init.egress.permit(network.mode.min(state.mode.get()));
    let outcome = apply(init, network.mode).await;
    let (mode, hints) = match outcome {
        Ok(()) => (network.mode, network.environment),
        Err(_) => (Mode::Off, Vec::new()),
    };
    if let Err(error) = &outcome {
        crate::console::say(&format!("mode {:?} cannot be set up: {error}", network.mode));
        state.withdraw().ok();
    }
    init.egress.permit(mode);
    if let Some(names) = &init.names {
        names.resolver(captures(mode)).ok();
    }
    init.settings.borrow_mut().hints = hints;
    identity::announce(init).await;
    outcome
}

async fn apply(init: &Init, mode: Mode) -> io::Result<()> {
    let state = &init.network;
    if captures(mode) {
        let capture = match state.capture.take() {
            Some(capture) => capture,
            None => {
                let sockets = sockets::all()?;
                let lookup = step("load the program that captures", Lookup::start())?;
                Capture { lookup, sockets }
            }
        };
        step("hand over the sockets", capture.equip(mode))?;
        *state.capture.borrow_mut() = Some(capture);
        step("set up the routes", add_routes(mode))?;
    } else {
        state.withdraw()?;
    }
    state.mode.set(mode);
    state.tell_relay().await
}

impl Capture {
    /// Puts into the program what the mode has.
    fn equip(&self, mode: Mode) -> io::Result<()> {
        for (slot, socket) in self.sockets.iter().enumerate() {
            let other_udp = slot & UDP != 0 && slot & lookup::DNS == 0;
            if other_udp && mode != Mode::Open {
                self.lookup.clear(slot)?;
            } else {
                self.lookup.set(slot, socket.as_fd())?;
            }
        }
        Ok(())
    }
}

/// Whether the mode has capture and a resolver.
pub(crate) fn captures(mode: Mode) -> bool {
    mode >= Mode::Restricted
}

fn add_routes(mode: Mode) -> io::Result<()> {
    let netlink = Netlink::open()?;
    for family in FAMILIES {
        netlink.add(family, Entry::Address)?;
        netlink.add(family, Entry::Groups)?;
        netlink.add(family, Entry::Everything)?;
        netlink.add(family, Entry::Tcp)?;
        netlink.add(family, Entry::Dns)?;
        if mode == Mode::Open {
            netlink.add(family, Entry::Udp)?;
        } else {
            netlink.remove(family, Entry::Udp)?;
        }
    }
    Ok(())
}

fn remove_routes() -> io::Result<()> {
    let netlink = Netlink::open()?;
    for family in FAMILIES {
        for entry in [Entry::Tcp, Entry::Dns, Entry::Udp] {
            netlink.remove(family, entry)?;
        }
        for entry in [Entry::Everything, Entry::Groups, Entry::Address] {
            netlink.remove(family, entry)?;
        }
    }
    Ok(())
}

/// Brings `lo` up; the kernel gives it 127.0.0.1 and ::1.
pub(super) fn loopback() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: all-zero bytes are a valid `ifreq`, a plain structure of the kernel.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *slot = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the descriptor is open and the request outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
