//! A scripted guest behind the real link, mux, control stream and HTTP.
//!
//! Programs it knows: `echo WORDS` prints them, `fail CODE` exits so, `stderr
//! WORD` writes there, `sleep` runs until it is killed, `flood N` writes N
//! bytes; any other is not found. Files live in a map.

mod api;

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use guest_protocol::{
    control::{self, Identity, Network, Newcomer, Request, Response},
    hello::{HelloAck, VERSION},
    link::Transport,
    mux::{self, Limits, Role, Stream},
    preface::{self, Preface},
    volumes,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    sync::watch,
    task::JoinSet,
};

/// What a fake guest knows. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FakeGuest {
    state: Arc<Mutex<Knowledge>>,
}

#[derive(Clone, Debug, Default)]
struct Knowledge {
    /// Whether it answers hellos only.
    mute: bool,
    identity: Option<Identity>,
    identified: usize,
    woken: usize,
    newcomer: Option<Newcomer>,
    network: Option<Network>,
    files: BTreeMap<String, Vec<u8>>,
    processes: BTreeMap<u32, watch::Sender<bool>>,
    tags: BTreeMap<String, u32>,
    last_pid: u32,
    users: Vec<String>,
    flooded: usize,
    /// Which volume is mounted where, by slot.
    volumes: BTreeMap<u8, String>,
    /// Whether something in it uses its volumes.
    volumes_in_use: bool,
    /// How often it was told to write what waits.
    synced: usize,
}

impl FakeGuest {
    /// What the host told it to be.
    pub fn identity(&self) -> Option<Identity> {
        self.knowledge().identity.clone()
    }

    /// How often it was told.
    pub fn identified(&self) -> usize {
        self.knowledge().identified
    }

    /// How often it was woken.
    pub fn woken(&self) -> usize {
        self.knowledge().woken
    }

    /// Who it became after it was somebody else.
    pub fn newcomer(&self) -> Option<Newcomer> {
        self.knowledge().newcomer.clone()
    }

    /// The network it was last told to have.
    pub fn network(&self) -> Option<Network> {
        self.knowledge().network.clone()
    }

    /// Makes it answer hellos and nothing else, until the end.
    pub fn fall_silent(&self) {
        self.knowledge().mute = true;
    }

    /// The accounts that API calls named, in order.
    pub fn users(&self) -> Vec<String> {
        self.knowledge().users.clone()
    }

    /// How many bytes of floods somebody took.
    pub fn flooded(&self) -> usize {
        self.knowledge().flooded
    }

    /// The content of a file.
    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        self.knowledge().files.get(path).cloned()
    }

    /// A copy of all that it knows, as a capture of its memory has it.
    pub(crate) fn copied(&self) -> Self {
        let mut copy = self.knowledge().clone();
        for kill in copy.processes.values_mut() {
            // Killing the one in the copy leaves the other alone.
            let killed = *kill.borrow();
            *kill = watch::Sender::new(killed);
        }
        Self { state: Arc::new(Mutex::new(copy)) }
    }

    /// The processes that run inside, by number.
    pub fn processes(&self) -> Vec<u32> {
        self.knowledge().processes.keys().copied().collect()
    }

    /// Serves hosts, one after another, until the task is ended.
    pub(crate) async fn run(self, port: Port) {
        let mut transport = Transport::new(port);
        let ack = HelloAck { version: VERSION, guest: "fake".into() };
        while transport.accept(&ack).await.is_ok() {
            let (mut session, driving) =
                mux::session(&mut transport, Role::Guest, Limits::default());
            let serving = async {
                let mut streams = JoinSet::new();
                while let Some(stream) = session.incoming.recv().await {
                    streams.spawn(self.clone().serve(stream));
                    while streams.try_join_next().is_some() {}
                }
            };
            tokio::select! {
                _ = driving => {}
                () = serving => {}
            }
        }
    }

    async fn serve(self, mut stream: Stream) {
        match preface::read(&mut stream).await {
            Ok(Preface::Control) => drop(self.control(stream).await),
            Ok(Preface::GuestApi) => api::serve(self, stream).await,
            Ok(Preface::Port(_) | Preface::Egress) | Err(_) => {}
        }
    }

    async fn control(&self, mut stream: Stream) -> io::Result<()> {
        loop {
            let request = control::read(&mut stream).await?;
            if self.knowledge().mute {
                std::future::pending::<()>().await;
            }
            let response = match request {
                Request::Ping { nonce } => Response::Pong { nonce },
                Request::Warm { .. } => Response::Done,
                Request::Identify(identity) => {
                    let mut knowledge = self.knowledge();
                    knowledge.identified += 1;
                    knowledge.identity = Some(*identity);
                    Response::Done
                }
                Request::Wake { .. } => {
                    self.knowledge().woken += 1;
                    Response::Done
                }
                Request::Become(newcomer) => {
                    self.knowledge().newcomer = Some(*newcomer);
                    Response::Done
                }
                Request::Volume(request) => self.volume(request),
                Request::Network(network) => {
                    self.knowledge().network = Some(*network);
                    Response::Done
                }
            };
            control::write(&mut stream, &response).await?;
        }
    }

    /// Where volumes are mounted, by slot.
    pub fn volumes(&self) -> BTreeMap<u8, String> {
        self.knowledge().volumes.clone()
    }

    /// How often it was told to write what waits to be written.
    pub fn synced(&self) -> usize {
        self.knowledge().synced
    }

    /// Makes every later unmount find the volume in use, or not.
    pub fn use_volumes(&self, used: bool) {
        self.knowledge().volumes_in_use = used;
    }

    fn volume(&self, request: volumes::Request) -> Response {
        let mut knowledge = self.knowledge();
        match request {
            volumes::Request::Mount { slot, path, .. } => {
                knowledge.volumes.insert(slot, path);
            }
            volumes::Request::Unmount { .. } if knowledge.volumes_in_use => return Response::Busy,
            volumes::Request::Unmount { slot, .. } => {
                knowledge.volumes.remove(&slot);
            }
            volumes::Request::Sync => knowledge.synced += 1,
            volumes::Request::Freeze { .. } | volumes::Request::Thaw { .. } => {}
        }
        Response::Done
    }

    fn knowledge(&self) -> MutexGuard<'_, Knowledge> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A port as virtio-serial has it: no end of file, and a host that comes and goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    inner: Arc<Mutex<Plug>>,
}

#[derive(Debug, Default)]
struct Plug {
    host: Option<DuplexStream>,
    closed: bool,
    frozen: bool,
    wakers: Vec<Waker>,
}

impl Port {
    /// Connects a host; the last one is cut off.
    pub(crate) fn plug(&self, host: DuplexStream) {
        let mut plug = self.plug_state();
        plug.host = Some(host);
        plug.wakers.drain(..).for_each(Waker::wake);
    }

    /// Makes the guest stand still, or go on: nothing comes and nothing goes.
    pub(crate) fn freeze(&self, frozen: bool) {
        let mut plug = self.plug_state();
        plug.frozen = frozen;
        plug.wakers.drain(..).for_each(Waker::wake);
    }

    /// Cuts the host off for good.
    pub(crate) fn close(&self) {
        let mut plug = self.plug_state();
        plug.host = None;
        plug.closed = true;
        plug.wakers.drain(..).for_each(Waker::wake);
    }

    fn plug_state(&self) -> MutexGuard<'_, Plug> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Polls the host; waits for the next one when it is gone.
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        operation: impl FnOnce(Pin<&mut DuplexStream>, &mut Context<'_>) -> Poll<io::Result<Option<T>>>,
    ) -> Poll<io::Result<T>> {
        let mut plug = self.plug_state();
        if plug.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        plug.wakers.push(cx.waker().clone());
        if plug.frozen {
            return Poll::Pending;
        }
        let Some(host) = plug.host.as_mut() else { return Poll::Pending };
        match operation(Pin::new(host), cx) {
            Poll::Ready(Ok(Some(done))) => Poll::Ready(Ok(done)),
            Poll::Ready(Ok(None) | Err(_)) => {
                plug.host = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(cx, |host, cx| {
            let before = buf.filled().len();
            match host.poll_read(cx, buf) {
                Poll::Ready(Ok(())) => Poll::Ready(Ok((buf.filled().len() > before).then_some(()))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            }
        })
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |host, cx| host.poll_write(cx, buf).map_ok(Some))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
