//! Bytes both ways, as fast as they come, and nothing kept while none do.
//!
//! A buffer is taken from the thread's pool when bytes are there and given back
//! when they are written, so a thousand idle tunnels hold no buffer at all. The
//! end of one direction is passed on and the other goes on; when neither moved
//! for the idle limit, both end.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep_until},
};

/// The bytes moved at once.
const BUFFER: usize = 128 * 1024;
/// Buffers that a thread keeps for the next who needs one.
const POOL: usize = 16;

thread_local! {
    static BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were moved, readable while they move.
#[derive(Debug, Default)]
pub struct Moved {
    /// From the sandbox.
    pub up: AtomicU64,
    /// To the sandbox.
    pub down: AtomicU64,
}

/// Moves bytes until both directions have ended.
///
/// # Errors
/// `TimedOut` when nothing moved for `idle`, else what a side said.
pub async fn splice<A, B>(
    inner: &mut A,
    outer: &mut B,
    moved: &Moved,
    idle: Duration,
) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    let (mut up, mut down) = (Way::default(), Way::default());
    let mut last = Instant::now();
    let mut seen = 0;
    let timer = sleep_until(last + idle);
    tokio::pin!(timer);
    poll_fn(|cx| {
        loop {
            let upwards = up.poll(cx, inner, outer, &moved.up)?;
            let downwards = down.poll(cx, outer, inner, &moved.down)?;
            if upwards.is_ready() && downwards.is_ready() {
                return Poll::Ready(Ok(()));
            }
            let total = moved.up.load(Ordering::Relaxed) + moved.down.load(Ordering::Relaxed);
            if total != seen {
                seen = total;
                last = Instant::now();
            }
            // The timer is moved when it fires, not with every byte.
            ready!(timer.as_mut().poll(cx));
            if last.elapsed() >= idle {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(last + idle);
        }
    })
    .await
}

/// One direction.
#[derive(Default)]
enum Way {
    #[default]
    Idle,
    /// Bytes from `.1` to `.2` are to be written.
    Full(Box<[u8]>, usize, usize),
    /// Written, and not yet on its way.
    Flush,
    /// The source ended.
    Closing,
    Closed,
}

impl Way {
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        moved: &AtomicU64,
    ) -> io::Result<Poll<()>>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        macro_rules! wait {
            ($poll:expr) => {
                match $poll {
                    Poll::Ready(result) => result?,
                    Poll::Pending => return Ok(Poll::Pending),
                }
            };
        }
        loop {
            match self {
                Self::Idle | Self::Flush => {
                    let mut buffer = take();
                    let mut read = ReadBuf::new(&mut buffer);
                    match Pin::new(&mut *from).poll_read(cx, &mut read) {
                        Poll::Ready(Ok(())) => {}
                        other => {
                            give(buffer);
                            // Nothing more to send now: what was written must go.
                            if matches!(self, Self::Flush) && other.is_pending() {
                                wait!(Pin::new(&mut *to).poll_flush(cx));
                                *self = Self::Idle;
                            }
                            wait!(other);
                            return Ok(Poll::Pending);
                        }
                    }
                    let length = read.filled().len();
                    if length == 0 {
                        give(buffer);
                        *self = Self::Closing;
                        continue;
                    }
                    *self = Self::Full(buffer, 0, length);
                }
                Self::Full(buffer, start, end) => {
                    let written = wait!(Pin::new(&mut *to).poll_write(cx, &buffer[*start..*end]));
                    if written == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    moved.fetch_add(written as u64, Ordering::Relaxed);
                    *start += written;
                    if start == end
                        && let Self::Full(buffer, ..) = std::mem::replace(self, Self::Flush)
                    {
                        give(buffer);
                    }
                }
                Self::Closing => {
                    wait!(Pin::new(&mut *to).poll_shutdown(cx));
                    *self = Self::Closed;
                }
                Self::Closed => return Ok(Poll::Ready(())),
            }
        }
    }
}

fn take() -> Box<[u8]> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BUFFER].into())
}

fn give(buffer: Box<[u8]>) {
    BUFFERS.with_borrow_mut(|pool| {
        if pool.len() < POOL {
            pool.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// The end of one direction is passed on; the other goes on.
    #[tokio::test]
    async fn each_direction_ends_by_itself() {
        let (mut client, mut inner) = duplex(4096);
        let (mut outer, mut server) = duplex(4096);
        let moved = Moved::default();
        let spliced = splice(&mut inner, &mut outer, &moved, Duration::from_secs(5));
        let talk = async {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.unwrap();
            assert_eq!(asked, "question");
            server.write_all(&[7; 1000]).await.unwrap();
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, [7; 1000]);
        };
        let (ended, ()) = tokio::join!(spliced, talk);
        ended.unwrap();
        assert_eq!((moved.up.into_inner(), moved.down.into_inner()), (8, 1000));
    }

    /// R: what does not move ends.
    #[tokio::test(start_paused = true)]
    async fn an_idle_tunnel_ends() {
        let (mut client, mut inner) = duplex(64);
        let (mut outer, _server) = duplex(64);
        let moved = Moved::default();
        let begun = Instant::now();
        let spliced = splice(&mut inner, &mut outer, &moved, Duration::from_secs(60));
        let talk = async {
            tokio::time::sleep(Duration::from_secs(40)).await;
            client.write_all(b"x").await.unwrap();
        };
        let (ended, ()) = tokio::join!(spliced, talk);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 100);
    }
}
