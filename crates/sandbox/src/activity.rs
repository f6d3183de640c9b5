//! Whether anybody uses a sandbox: the one place that says what idle means.
//!
//! A sandbox is idle while no stream of the guest API is open, for as long as
//! that has been so. What runs inside does not count: a process that nobody
//! follows is nobody's wait. Streams that the guest opens do not count either,
//! so a guest cannot keep itself awake.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use guest_protocol::mux;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The use of one sandbox. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<Mutex<Use>>);

#[derive(Debug)]
struct Use {
    open: usize,
    since: Instant,
}

/// A stream into a sandbox, which is in use while it exists.
#[derive(Debug)]
pub struct Stream {
    inner: mux::Stream,
    _used: Used,
}

/// A use that has not ended.
#[derive(Debug)]
pub(crate) struct Used(Activity);

impl Activity {
    /// Of a sandbox that begins now.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Use { open: 0, since: Instant::now() })))
    }

    /// Begins a use.
    pub(crate) fn begin(&self) -> Used {
        self.change(|used| used.open += 1);
        Used(self.clone())
    }

    /// For how long nobody has used it; nothing while somebody does.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (used.open == 0).then(|| used.since.elapsed())
    }

    fn change(&self, change: impl FnOnce(&mut Use)) {
        // Nothing panics while it is held.
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut used);
        used.since = Instant::now();
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.0.change(|used| used.open -= 1);
    }
}

impl Stream {
    pub(crate) fn new(inner: mux::Stream, used: Used) -> Self {
        Self { inner, _used: used }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_is_idle_since_its_last_stream_ended() {
        let activity = Activity::new();
        let (one, two) = (activity.begin(), activity.begin());
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(one);
        assert_eq!(activity.idle(), None);
        drop(two);
        assert_eq!(activity.idle(), Some(Duration::ZERO));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(activity.idle(), Some(Duration::from_secs(7)));
    }
}
