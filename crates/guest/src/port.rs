//! A virtio-serial port as a byte pipe that never ends.
//!
//! The driver reports "no host is connected" in three ways, none of which may
//! reach the link: a read returns 0, a write would block, and poll reports a
//! hang-up. All of them mean: wait. The link notices a new host by its hello.
//!
//! The runtime keeps a hang-up for good, so the port is not registered with it.
//! Each direction has an epoll instance of its own around the port, and that
//! instance is what the runtime waits for; it never hangs up.

use std::{
    future::Future as _,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    fs::{Mode, OFlags},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    time::{Instant, Sleep, sleep},
};

/// Where the kernel lists ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// While no host is connected, the port is tried this often: an edge may have
/// been consumed before it meant anything.
const DISCONNECTED: Duration = Duration::from_secs(1);
/// While one is connected, edges suffice; this only bounds a lost one.
const CONNECTED: Duration = Duration::from_secs(15);

/// An open port.
#[derive(Debug)]
pub(crate) struct Port {
    file: OwnedFd,
    readable: Edge,
    writable: Edge,
}

impl Port {
    /// Opens the port called `name`.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let device = find(Path::new(PORTS), name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(device, flags, Mode::empty())?;
        let readable = Edge::new(&file, epoll::EventFlags::IN)?;
        let writable = Edge::new(&file, epoll::EventFlags::OUT)?;
        Ok(Self { file, readable, writable })
    }
}

impl Port {
    /// A copy, to ask the driver whether a host is connected.
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let port = self.get_mut();
        loop {
            match rustix::io::read(&port.file, buffer.initialize_unfilled()) {
                Ok(0) => ready!(port.readable.poll(cx, DISCONNECTED))?,
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::AGAIN) => ready!(port.readable.poll(cx, CONNECTED))?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let port = self.get_mut();
        loop {
            match rustix::io::write(&port.file, bytes) {
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(rustix::io::Errno::AGAIN) => ready!(port.writable.poll(cx, DISCONNECTED))?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Edges of one direction of a port.
#[derive(Debug)]
struct Edge {
    epoll: AsyncFd<OwnedFd>,
    fallback: Pin<Box<Sleep>>,
}

impl Edge {
    fn new(file: &OwnedFd, interest: epoll::EventFlags) -> io::Result<Self> {
        let inner = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&inner, file, epoll::EventData::new_u64(0), interest | epoll::EventFlags::ET)?;
        // SAFETY: the descriptor is owned by what is registered, so it stays open
        // and the same for as long as that lives.
        let epoll = unsafe { AsyncFd::register_with_interest(inner, Interest::READABLE) }?;
        Ok(Self { epoll, fallback: Box::pin(sleep(DISCONNECTED)) })
    }

    /// Ready when the port should be tried again; within `fallback` at the latest.
    fn poll(&mut self, cx: &mut Context<'_>, fallback: Duration) -> Poll<io::Result<()>> {
        if let Poll::Ready(guard) = self.epoll.poll_read_ready(cx) {
            let mut guard = guard?;
            let mut events = Vec::with_capacity(1);
            // Takes the edge out of the inner instance, which makes it quiet again.
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let n = epoll::wait(
                guard.get_inner(),
                rustix::buffer::spare_capacity(&mut events),
                Some(&none),
            )?;
            if n > 0 {
                return Poll::Ready(Ok(()));
            }
            guard.clear_ready();
            // Registers the waker for the next edge.
            if let Poll::Ready(guard) = self.epoll.poll_read_ready(cx) {
                drop(guard?);
                return Poll::Ready(Ok(()));
            }
        }
        if self.fallback.is_elapsed() || self.fallback.deadline() > Instant::now() + fallback {
            self.fallback.as_mut().reset(Instant::now() + fallback);
        }
        self.fallback.as_mut().poll(cx).map(Ok)
    }
}

/// Finds the device of the port called `name`.
fn find(ports: &Path, name: &str) -> io::Result<PathBuf> {
    for entry in std::fs::read_dir(ports)? {
        let entry = entry?;
        let label = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if label.trim_end() == name {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio port is called {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().unwrap();
        for (port, name) in [("vport0p1", "other\n"), ("vport0p2", "coldframe.link\n")] {
            std::fs::create_dir(ports.path().join(port)).unwrap();
            std::fs::write(ports.path().join(port).join("name"), name).unwrap();
        }
        let found = find(ports.path(), "coldframe.link").unwrap();
        assert_eq!(found, Path::new("/dev/vport0p2"));
        assert!(find(ports.path(), "missing").is_err());
    }
}
