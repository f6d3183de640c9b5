//! The resolver: questions go to the gateway, addresses of ours come back.
//!
//! Whether a name may be asked for is the gateway's to say, question by
//! question. Where it says yes and names no record, the program gets an address
//! that stands for the name; nothing is asked outside before a connection to it
//! was judged. In mode `open` the gateway's answers are passed on as they are.

use std::{
    cell::RefCell, collections::HashMap, io, os::unix::net::UnixStream as StdStream, rc::Rc,
    time::Duration,
};

use guest_protocol::{
    control::Mode,
    egress::{Front, Opening},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    time::timeout,
};

use super::{
    Relay,
    datagram::Datagrams,
    dns::{self, Failure, Question, Reply},
    owner::{self, Protocol},
    pause, task,
};
use crate::messages::FromRelay;

/// Questions under way.
const MOST: usize = 64;
/// Of these, one account's, so that another's are always answered.
const SHARE: usize = 48;
/// How long the gateway may take; programs ask again after five seconds.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a connection may say nothing.
const IDLE: Duration = Duration::from_secs(10);
/// The longest question over UDP that is taken.
const MAX_QUESTION: usize = 4096;

/// Questions under way, by account.
#[derive(Debug, Default)]
pub(super) struct Questions(RefCell<HashMap<Option<u32>, usize>>);

/// One of them.
struct Place {
    relay: Rc<Relay>,
    uid: Option<u32>,
}

impl Place {
    fn take(relay: &Rc<Relay>, uid: Option<u32>) -> Option<Self> {
        let mut load = relay.questions.0.borrow_mut();
        let all: usize = load.values().sum();
        let own = load.entry(uid).or_default();
        if all >= MOST || *own >= SHARE {
            return None;
        }
        *own += 1;
        Some(Self { relay: relay.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut load = self.relay.questions.0.borrow_mut();
        if let Some(own) = load.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                load.remove(&self.uid);
            }
        }
    }
}

/// Takes questions over UDP.
pub(super) async fn serve_udp(relay: Rc<Relay>, socket: Rc<Datagrams>) {
    let mut buffer = vec![0; MAX_QUESTION];
    loop {
        let Ok((n, between)) = socket.receive(&mut buffer).await else {
            pause().await;
            continue;
        };
        let uid = relay.owners.of(Protocol::Udp, between.program, between.outside);
        // Too many: it is lost, and asked again.
        let Some(place) = Place::take(&relay, uid) else { continue };
        let (socket, message) = (socket.clone(), buffer[..n].to_vec());
        task(async move {
            let Some((mut answer, question)) = resolve(&place, &message).await else { return };
            if let Some(question) = question.filter(|question| answer.len() > question.size) {
                answer = question.truncate(&message);
            }
            socket.answer(&answer, between).await.ok();
        });
    }
}

/// Takes connections with questions in turn.
pub(super) async fn serve_tcp(relay: Rc<Relay>, listener: TcpListener) {
    loop {
        let (client, program) = super::accept(&listener).await;
        let Ok(here) = client.local_addr() else { continue };
        let uid = relay.owners.of(Protocol::Tcp, owner::plain(program), owner::plain(here));
        // Too many: the connection is closed.
        let Some(place) = Place::take(&relay, uid) else { continue };
        task(async move {
            converse(&place, client).await.ok();
        });
    }
}

async fn converse(place: &Place, mut client: TcpStream) -> io::Result<()> {
    loop {
        let message = timeout(IDLE, read(&mut client)).await.map_err(io::Error::other)??;
        let Some((answer, _)) = resolve(place, &message).await else { return Ok(()) };
        timeout(IDLE, write(&mut client, &answer)).await.map_err(io::Error::other)??;
    }
}

/// Answers a message, unless it is none that has an answer.
async fn resolve(place: &Place, message: &[u8]) -> Option<(Vec<u8>, Option<Question>)> {
    let question = match Question::read(message) {
        Ok(question) => question,
        Err(failure) => return Some((dns::refuse_unread(message, failure?)?, None)),
    };
    let relay = &place.relay;
    if question.wants_address() && question.name.is_none() {
        return Some((question.refuse(message, Failure::NoName), Some(question)));
    }
    let answer = match timeout(ANSWER, ask(relay, place.uid, message)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => {
            return Some((question.refuse(message, Failure::Server), Some(question)));
        }
    };
    // In mode open there is a record or there is none.
    let ours = relay.mode.get() != Mode::Open && question.wants_address();
    let answer = match (dns::judge(message, &answer), &question.name) {
        (Some(Reply::Permitted), Some(name)) if ours => {
            let (v4, v6) = relay.names.borrow_mut().addresses(name);
            question.answer(message, v4, v6)
        }
        (Some(_), _) => answer,
        (None, _) => question.refuse(message, Failure::Server),
    };
    Some((answer, Some(question)))
}

/// Asks the gateway, over a stream for this question alone.
async fn ask(relay: &Relay, uid: Option<u32>, message: &[u8]) -> io::Result<Vec<u8>> {
    let (near, far) = StdStream::pair()?;
    near.set_nonblocking(true)?;
    let mut near = UnixStream::from_std(near)?;
    let opening = Opening { uid, front: Front::Dns };
    relay.tell_init(FromRelay::Carry(opening), Some(far.into())).await;
    write(&mut near, message).await?;
    read(&mut near).await
}

async fn write(
    stream: &mut (impl tokio::io::AsyncWrite + Unpin),
    message: &[u8],
) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

async fn read(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
