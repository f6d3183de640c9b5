//! The gateway as a process: its control channel, its socket, its end.
//!
//! It is started by the server, without rights, and told everything over one
//! channel. When that channel ends it ends too, at once, with everything that it
//! was carrying: so a server that was killed leaves no way out behind.

mod channel;
mod rights;

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener as StdListener, UnixStream as StdStream},
    },
    sync::Arc,
    time::Duration,
};

use rustix::fs::{Mode, OFlags, openat};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
};

use crate::{
    engine::{Engine, Limits},
    resolve::{Lookup, Resolver},
    tls::{
        authority::{Authorities, RootKey},
        upstream::Trust,
    },
};

pub use self::rights::{receive, send};

/// Streams of all sandboxes at the same time.
const STREAMS: usize = 8192;
/// The file with the secret that every authority comes from.
const ROOT: &str = "root.key";

/// What the process begins with.
#[derive(Debug)]
pub struct Given {
    /// To the server.
    pub control: StdStream,
    /// Where streams arrive.
    pub listener: StdListener,
    /// The folder that is ours alone.
    pub folder: OwnedFd,
}

impl Given {
    /// Takes over what the server sent on `control`.
    pub fn receive(control: StdStream) -> io::Result<Self> {
        let [listener, folder] = receive(control.as_fd())?;
        Ok(Self { control, listener: listener.into(), folder })
    }

    /// The secret of the installation, made at the first start.
    pub fn root(&self, random: impl Fn(&mut [u8])) -> io::Result<RootKey> {
        let mut bytes = [0; 32];
        let existing = openat(&self.folder, ROOT, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        match existing {
            Ok(file) => {
                File::from(file).read_exact(&mut bytes)?;
                Ok(RootKey::from_random(bytes))
            }
            Err(rustix::io::Errno::NOENT) => {
                random(&mut bytes);
                self.keep(&bytes)?;
                Ok(RootKey::from_random(bytes))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whole or not at all, and on disk before it is used.
    fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        use io::Write as _;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let new = "root.new";
        let mut file = File::from(openat(&self.folder, new, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(bytes)?;
        file.sync_all()?;
        rustix::fs::renameat(&self.folder, new, &self.folder, ROOT)?;
        Ok(rustix::fs::fsync(&self.folder)?)
    }
}

/// Runs until the server is gone.
pub async fn run(
    given: Given,
    root: RootKey,
    trust: Trust,
    lookup: Box<dyn Lookup>,
    limits: Limits,
) -> io::Result<()> {
    given.control.set_nonblocking(true)?;
    given.listener.set_nonblocking(true)?;
    let control = UnixStream::from_std(given.control)?;
    let listener = UnixListener::from_std(given.listener)?;
    let authorities = Arc::new(Authorities::new(root));
    let (channel, queue) = channel::Channel::new();
    let channel = Arc::new(channel);
    let resolver = Resolver::new(lookup);
    let (policy, journal) = (channel.clone(), channel.clone());
    let engine = Engine::new(policy, journal, resolver, authorities.clone(), trust, limits);
    let accepting = accept(listener, Arc::new(engine));
    tokio::select! {
        ended = channel.drive(control, queue, &authorities) => ended,
        never = accepting => match never {},
    }
}

async fn accept(listener: UnixListener, engine: Arc<Engine>) -> std::convert::Infallible {
    let places = Arc::new(Semaphore::new(STREAMS));
    let mut streams = JoinSet::new();
    loop {
        while streams.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { continue };
        match listener.accept().await {
            Ok((stream, _)) => {
                let engine = engine.clone();
                streams.spawn(async move {
                    engine.serve(Box::new(stream)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a stream could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
