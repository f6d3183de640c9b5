//! The link: sessions, and what becomes of each stream the host opens.
//!
//! A session ends when the host says hello again. Its streams end with it;
//! processes do not.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::net::UnixStream as StdStream,
    rc::Rc,
    time::Duration,
};

use guest_protocol::{
    hello::{HelloAck, VERSION},
    link::Transport,
    mux::{self, Limits, Role, Stream},
    preface::{self, Preface},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::timeout,
};

use super::{API_PORT, Init, RELAY_PORTS, RESOLVER_PORT, control};
use crate::{messages::ToApi, splice};

/// A stream that says nothing for so long is dropped.
const PREFACE: Duration = Duration::from_secs(10);
/// How long a program inside may take to accept.
const DIAL: Duration = Duration::from_secs(10);

/// Serves sessions over a byte pipe until the pipe fails.
pub(super) async fn serve<IO>(init: Rc<Init>, pipe: IO) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let ack = HelloAck { version: VERSION, guest: env!("CARGO_PKG_VERSION").to_owned() };
    let mut transport = Transport::new(pipe);
    loop {
        transport.accept(&ack).await?;
        // A new host, or one that broke the rules of the mux. Either way the next
        // thing to wait for is a hello; a pipe that has failed fails there too.
        session(&init, &mut transport).await.ok();
    }
}

async fn session<IO>(init: &Rc<Init>, transport: &mut Transport<IO>) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (mut session, drive) = mux::session(transport, Role::Guest, Limits::default());
    init.egress.connected(session.opener.clone());
    // Dropped with the session, and the streams' tasks with it.
    let mut streams = JoinSet::new();
    tokio::pin!(drive);
    loop {
        tokio::select! {
            ended = &mut drive => return ended,
            stream = session.incoming.recv() => match stream {
                Some(stream) => {
                    streams.spawn_local(handle(init.clone(), stream));
                }
                None => return drive.await,
            },
            Some(_) = streams.join_next() => {}
        }
    }
}

async fn handle(init: Rc<Init>, mut stream: Stream) {
    let Ok(Ok(preface)) = timeout(PREFACE, preface::read(&mut stream)).await else { return };
    // An error here is the end of one stream, which its other side sees.
    match preface {
        Preface::Control => control::serve(init, stream).await.ok(),
        Preface::GuestApi => api(&init, stream).await.ok(),
        Preface::Port(port) => dial(port, stream).await.ok(),
        // Only a guest opens these.
        Preface::Egress => None,
    };
}

/// Hands the stream to the API as one end of a socket pair.
async fn api(init: &Init, mut stream: Stream) -> io::Result<()> {
    let (near, far) = StdStream::pair()?;
    near.set_nonblocking(true)?;
    let mut near = UnixStream::from_std(near)?;
    init.tell_api(ToApi::Connection, vec![far.into()]).await;
    splice::join(&mut stream, &mut near).await
}

/// Connects the stream to a program that listens inside.
async fn dial(port: u16, mut stream: Stream) -> io::Result<()> {
    if !may_dial(port) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // A program that does not accept keeps its callers waiting for minutes.
    let connect = async |address: IpAddr| {
        timeout(DIAL, TcpStream::connect((address, port))).await.map_err(io::Error::other)?
    };
    let mut program = match connect(Ipv4Addr::LOCALHOST.into()).await {
        Ok(program) => program,
        Err(_) => connect(Ipv6Addr::LOCALHOST.into()).await?,
    };
    program.set_nodelay(true)?;
    splice::join(&mut stream, &mut program).await
}

/// The guest's own listeners are not for callers from outside.
fn may_dial(port: u16) -> bool {
    !matches!(port, 0 | API_PORT | RESOLVER_PORT) && !RELAY_PORTS.contains(&port)
}

#[cfg(test)]
mod tests {
    use super::may_dial;

    #[test]
    fn the_guests_own_ports_cannot_be_dialled() {
        for port in [0, 53, 49983, 8788, 8789] {
            assert!(!may_dial(port), "{port}");
        }
        assert!(may_dial(8080));
    }
}
