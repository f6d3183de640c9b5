//! Streams that a guest opens: to the gateway, and nowhere else.
//!
//! What a guest may open is an egress stream. Which sandbox it comes from is
//! said by us, from the link; nothing behind the preface is read here. How many
//! a guest has at once, and how fast it opens them, is bounded.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use domain::id::SandboxId;
use guest_protocol::{
    mux::Stream,
    preface::{self, Preface},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, timeout},
};

/// Streams of one guest at the same time.
const STREAMS: usize = 256;
/// Streams that a guest may open at once, and in each second after that.
const BURST: u32 = 256;
const PER_SECOND: u32 = 128;
/// How long a guest may take to say what a stream is for.
const PREFACE: Duration = Duration::from_secs(10);

/// The way to the gateway.
#[async_trait]
pub trait Egress: fmt::Debug + Send + Sync {
    /// Carries a stream of a sandbox to its end.
    async fn carry(&self, sandbox: &SandboxId, stream: Stream);
}

/// A host whose sandboxes have no way out: every stream ends at once (S9, U21).
#[derive(Clone, Copy, Debug)]
pub struct NoEgress;

#[async_trait]
impl Egress for NoEgress {
    async fn carry(&self, _: &SandboxId, _: Stream) {}
}

/// Takes the streams of one session until it ends. Dropping it ends them all.
pub(crate) async fn take(
    egress: Arc<dyn Egress>,
    sandbox: SandboxId,
    mut incoming: mpsc::Receiver<Stream>,
) {
    let places = Arc::new(Semaphore::new(STREAMS));
    let mut carried = JoinSet::new();
    let mut pace = Pace { left: BURST, since: Instant::now() };
    while let Some(mut stream) = incoming.recv().await {
        while carried.try_join_next().is_some() {}
        // One that is too many is dropped, which resets it.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        if !pace.take(Instant::now()) {
            continue;
        }
        let (egress, sandbox) = (egress.clone(), sandbox.clone());
        carried.spawn(async move {
            let said = timeout(PREFACE, preface::read(&mut stream)).await;
            if matches!(said, Ok(Ok(Preface::Egress))) {
                egress.carry(&sandbox, stream).await;
            }
            drop(place);
        });
    }
}

/// How fast streams may be opened.
struct Pace {
    left: u32,
    since: Instant,
}

impl Pace {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.since).as_millis();
        let more = u32::try_from(passed * u128::from(PER_SECOND) / 1000).unwrap_or(BURST);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(BURST);
            self.since = now;
        }
        let there = self.left > 0;
        self.left = self.left.saturating_sub(1);
        there
    }
}

#[cfg(test)]
mod tests {
    use guest_protocol::mux::{self, Limits, Role, Session};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[derive(Debug)]
    struct Echo;

    #[async_trait]
    impl Egress for Echo {
        async fn carry(&self, sandbox: &SandboxId, mut stream: Stream) {
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(&asked, b"ping");
            stream.write_all(sandbox.as_str().as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    }

    /// W28: the link says which sandbox it is; a guest opens nothing else.
    #[tokio::test]
    async fn a_guest_opens_egress_streams_and_nothing_else() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (host, driving) = mux::session(near, Role::Host, Limits::default());
        let (Session { opener, incoming: _incoming }, other) =
            mux::session(far, Role::Guest, Limits::default());
        let id = SandboxId::from_random([3; 16]);
        tokio::spawn(driving);
        tokio::spawn(other);
        tokio::spawn(take(Arc::new(Echo), id.clone(), host.incoming));
        for (preface, expected) in
            [(Preface::Egress, id.as_str()), (Preface::Control, ""), (Preface::Port(80), "")]
        {
            let mut stream = opener.open().await.unwrap();
            preface::write(&mut stream, preface).await.unwrap();
            // What is refused may be reset before this arrives.
            drop(stream.write_all(b"ping").await);
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer).await);
            assert_eq!(answer, expected, "{preface:?}");
        }
    }

    /// R: a guest that opens streams without end gets few of them.
    #[test]
    fn the_pace_is_bounded() {
        let start = Instant::now();
        let mut pace = Pace { left: BURST, since: start };
        let taken = (0..10_000).filter(|_| pace.take(start)).count();
        assert_eq!(taken, BURST as usize);
        let later = start + Duration::from_secs(1);
        let taken = (0..10_000).filter(|_| pace.take(later)).count();
        assert_eq!(taken, PER_SECOND as usize);
    }
}
