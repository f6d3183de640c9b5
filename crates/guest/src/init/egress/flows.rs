//! Datagrams between a program and one address outside.
//!
//! A flow begins with a datagram that the relay got; from then on a socket of
//! its own is connected to the program, and the kernel gives it what follows.
//! It ends when the program says nothing for a while, or with its stream.

use std::{cell::RefCell, collections::HashMap, io, net::SocketAddr, rc::Rc, time::Duration};

use guest_protocol::{
    egress::{Front, Opening},
    mux::Stream,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    net::UdpSocket,
    sync::mpsc,
    time::timeout,
};

use super::{Place, has, open, verdict};
use crate::init::{Init, network::sockets};

/// How long a program may say nothing.
const IDLE: Duration = Duration::from_secs(60);
/// Datagrams that wait while the stream opens; more are lost, as datagrams are.
const QUEUE: usize = 16;
/// The largest one.
const MAX_DATAGRAM: usize = 65_535;

/// Program and address outside.
type Pair = (SocketAddr, SocketAddr);

/// Flows under way, to find the one that a late datagram belongs to.
#[derive(Debug, Default)]
pub(in crate::init) struct Flows(RefCell<HashMap<Pair, mpsc::Sender<Vec<u8>>>>);

/// Takes a datagram that the relay got from `program`.
pub(in crate::init) fn datagram(
    init: &Rc<Init>,
    opening: Opening,
    program: SocketAddr,
    datagram: Vec<u8>,
) {
    let Front::Udp(outside) = opening.front else { return };
    if !has(init.egress.mode.get(), &opening.front) {
        return;
    }
    let pair = (program, outside);
    let mut flows = init.egress.flows.0.borrow_mut();
    if let Some(flow) = flows.get(&pair) {
        // Full or ending: it is lost, as datagrams are.
        flow.try_send(datagram).ok();
        return;
    }
    let Some(place) = Place::take(init, opening.uid) else { return };
    let (flow, queue) = mpsc::channel(QUEUE);
    flow.try_send(datagram).ok();
    flows.insert(pair, flow);
    let listed = Listed { place, pair };
    init.egress.spawn(async move {
        // Its end is silence, as with any network.
        attend(&listed, &opening, queue).await.ok();
    });
}

/// A flow that can be found.
struct Listed {
    place: Place,
    pair: Pair,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.place.init.egress.flows.0.borrow_mut().remove(&self.pair);
    }
}

async fn attend(
    listed: &Listed,
    opening: &Opening,
    queue: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let (program, outside) = listed.pair;
    let socket = std::net::UdpSocket::from(sockets::flow(outside, program)?);
    let socket = UdpSocket::from_std(socket)?;
    let mut stream = open(&listed.place.init, opening).await?;
    verdict(&mut stream).await?;
    let (from, to) = split(stream);
    tokio::select! {
        ended = upwards(&socket, queue, to) => ended,
        ended = downwards(&socket, from) => ended,
    }
}

async fn upwards(
    socket: &UdpSocket,
    mut queue: mpsc::Receiver<Vec<u8>>,
    mut to: WriteHalf<Stream>,
) -> io::Result<()> {
    let mut buffer = vec![0; 2 + MAX_DATAGRAM];
    loop {
        let next = async {
            tokio::select! {
                biased;
                Some(datagram) = queue.recv() => {
                    buffer[2..2 + datagram.len()].copy_from_slice(&datagram);
                    Ok(datagram.len())
                }
                // A program that is gone is no error here: it may come back.
                n = socket.recv(&mut buffer[2..]) => n,
            }
        };
        let n = match timeout(IDLE, next).await {
            Ok(Ok(n)) => n,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        // It fits: no datagram is longer.
        buffer[..2].copy_from_slice(&(n as u16).to_be_bytes());
        to.write_all(&buffer[..2 + n]).await?;
        to.flush().await?;
    }
}

async fn downwards(socket: &UdpSocket, mut from: ReadHalf<Stream>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let n = usize::from(from.read_u16().await?);
        from.read_exact(&mut buffer[..n]).await?;
        // What the kernel does not take is lost.
        socket.send(&buffer[..n]).await.ok();
    }
}
