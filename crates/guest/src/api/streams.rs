//! The streams of a process, as descriptors that init passed.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
};

use bytes::{Bytes, BytesMut};
use guest_protocol::process::TerminalSize;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{
    io::{AsyncWriteExt as _, Interest, unix::AsyncFd},
    net::unix::pipe,
    sync::Mutex,
};

use crate::messages::Wiring;

/// The most bytes of one piece of output.
const PIPE_PIECE: usize = 32 * 1024;
const TERMINAL_PIECE: usize = 16 * 1024;

/// Which stream a piece of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Stderr,
    Terminal,
}

/// Output of a process.
#[derive(Debug)]
pub(crate) enum Source {
    Pipe(pipe::Receiver),
    Terminal(Rc<AsyncFd<OwnedFd>>),
}

/// Input of a process. One writer at a time, so that pieces do not mix.
#[derive(Debug)]
pub(crate) enum Sink {
    Pipe(Mutex<pipe::Sender>),
    Terminal(Mutex<Rc<AsyncFd<OwnedFd>>>),
}

/// All streams of a process.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) sink: Option<Sink>,
    pub(crate) sources: Vec<(Channel, Source)>,
}

impl Streams {
    /// Takes the descriptors of a process in the order of
    /// [`crate::messages::Process`].
    pub(crate) fn take(wiring: Wiring, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        for descriptor in &descriptors {
            // Init's copies share the flag, and init never reads them.
            fcntl_setfl(descriptor, fcntl_getfl(descriptor)? | OFlags::NONBLOCK)?;
        }
        let mut rest = descriptors.into_iter();
        let mut next = || rest.next().ok_or_else(|| io::Error::other("a stream is missing"));
        if let Wiring::Terminal { .. } = wiring {
            // SAFETY: the descriptor is owned by what is registered, so it stays
            // open and the same for as long as that lives.
            let terminal = Rc::new(unsafe { AsyncFd::register(next()?) }?);
            let source = Source::Terminal(terminal.clone());
            return Ok(Self {
                sink: Some(Sink::Terminal(Mutex::new(terminal))),
                sources: vec![(Channel::Terminal, source)],
            });
        }
        let sink = match wiring {
            Wiring::Pipes => Some(Sink::Pipe(Mutex::new(pipe::Sender::from_owned_fd(next()?)?))),
            Wiring::NoStdin | Wiring::Terminal { .. } => None,
        };
        let mut sources = Vec::new();
        for channel in [Channel::Stdout, Channel::Stderr] {
            sources.push((channel, Source::Pipe(pipe::Receiver::from_owned_fd(next()?)?)));
        }
        Ok(Self { sink, sources })
    }
}

impl Source {
    /// The next piece; `None` at the end.
    pub(crate) async fn read(&self) -> io::Result<Option<Bytes>> {
        let mut buffer = BytesMut::new();
        let n = match self {
            Self::Pipe(pipe) => loop {
                pipe.readable().await?;
                buffer.reserve(PIPE_PIECE);
                match pipe.try_read_buf(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => break read?,
                }
            },
            Self::Terminal(terminal) => {
                let mut piece = vec![0; TERMINAL_PIECE];
                let read = terminal
                    .async_io(Interest::READABLE, |file| {
                        Ok(rustix::io::read(file.as_fd(), &mut piece[..])?)
                    })
                    .await;
                match read {
                    Ok(n) => {
                        buffer.extend_from_slice(&piece[..n]);
                        n
                    }
                    // The kernel's word for: nobody has the other side open.
                    Err(error) if error.raw_os_error() == Some(libc::EIO) => 0,
                    Err(error) => return Err(error),
                }
            }
        };
        Ok((n > 0).then(|| buffer.freeze()))
    }
}

impl Sink {
    /// Writes everything; waits while the process does not read.
    pub(crate) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.lock().await.write_all(bytes).await,
            Self::Terminal(terminal) => {
                let terminal = terminal.lock().await;
                while !bytes.is_empty() {
                    let write = |file: &OwnedFd| Ok(rustix::io::write(file.as_fd(), bytes)?);
                    let n = terminal.async_io(Interest::WRITABLE, write).await?;
                    bytes = &bytes[n..];
                }
                Ok(())
            }
        }
    }

    /// Whether this is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Changes a terminal's size.
    pub(crate) async fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let Self::Terminal(terminal) = self else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (ws_col, ws_row) = cells(size);
        let size = Winsize { ws_col, ws_row, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(terminal.lock().await.get_ref(), size)?)
    }
}

/// The kernel counts cells in 16 bits.
pub(crate) fn cells(size: TerminalSize) -> (u16, u16) {
    let clamp = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    (clamp(size.cols), clamp(size.rows))
}
