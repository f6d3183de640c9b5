//! What becomes of a stream that a sandbox opened.
//!
//! A stream begins with what the server says about it ([`Hand`]), then with what
//! the relay inside says ([`Opening`]). Nothing after that is read before the
//! rules of the sandbox are here, at the generation that the server named or
//! later. Then the front for it takes over.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use domain::id::SandboxId;
use guest_protocol::egress::{self, Destination, Front as Asked, Opening, Verdict};
use tokio::time::timeout;

use crate::{
    client::Client,
    code::Code,
    decide::Front,
    dns::Meter,
    front,
    journal::Journal,
    resolve::Resolver,
    rules::Policy,
    stream::Stream,
    tls::{authority::Authorities, upstream::Trust},
    wire::{self, Hand},
};

/// How long things may take, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What the server and the relay say first.
    pub opening: Duration,
    /// Rules that have to be asked for.
    pub rules: Duration,
    /// A TLS hello or the head of a request.
    pub head: Duration,
    /// Connecting to all addresses of a destination, TLS included.
    pub dial: Duration,
    /// The head of an answer.
    pub answer: Duration,
    /// A tunnel in which nothing moves.
    pub idle: Duration,
    /// Streams of one sandbox at the same time.
    pub streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            opening: Duration::from_secs(10),
            rules: Duration::from_secs(10),
            head: Duration::from_secs(30),
            dial: Duration::from_secs(15),
            answer: Duration::from_secs(900),
            idle: Duration::from_secs(1800),
            streams: 256,
        }
    }
}

/// The gateway, apart from how streams come to it.
pub struct Engine {
    pub(crate) policy: Arc<dyn Policy>,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) resolver: Resolver,
    pub(crate) authorities: Arc<Authorities>,
    pub(crate) trust: Trust,
    pub(crate) limits: Limits,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
}

/// What is counted for one sandbox while it has streams.
pub(crate) struct Sandbox {
    streams: Mutex<usize>,
    pub(crate) meter: Meter,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Engine {
    /// Puts the parts together.
    pub fn new(
        policy: Arc<dyn Policy>,
        journal: Arc<dyn Journal>,
        resolver: Resolver,
        authorities: Arc<Authorities>,
        trust: Trust,
        limits: Limits,
    ) -> Self {
        let sandboxes = Mutex::default();
        Self { policy, journal, resolver, authorities, trust, limits, sandboxes }
    }

    /// Serves a stream to its end.
    pub async fn serve(self: Arc<Self>, mut stream: Stream) {
        let opening = async {
            let hand: Hand = wire::read_hand(&mut stream).await?;
            let opening: Opening = egress::read(&mut stream).await?;
            Ok::<_, io::Error>((hand, opening))
        };
        let Ok(Ok((hand, opening))) = timeout(self.limits.opening, opening).await else { return };
        if let Err(error) = self.serve_opened(stream, hand, opening).await {
            tracing::debug!(%error, "a stream of a sandbox ended");
        }
    }

    async fn serve_opened(
        self: Arc<Self>,
        mut stream: Stream,
        hand: Hand,
        opening: Opening,
    ) -> io::Result<()> {
        let Some(place) = self.place(&hand.sandbox) else {
            return refuse(&mut stream, &opening.front, Code::TooMany).await;
        };
        let rules = self.policy.rules(&hand.sandbox, hand.generation);
        let Ok(Some(rules)) = timeout(self.limits.rules, rules).await else {
            return refuse(&mut stream, &opening.front, Code::InternalError).await;
        };
        let front = match &opening.front {
            Asked::Named => Front::Named,
            Asked::Proxy => Front::Proxy,
            Asked::Captured(_) => Front::Captured,
            Asked::Dns => Front::Dns,
            Asked::Udp(_) => Front::Udp,
        };
        let client =
            Client { engine: self.clone(), sandbox: hand.sandbox, uid: opening.uid, front, rules };
        match opening.front {
            Asked::Named => front::named::serve(client, stream).await,
            Asked::Proxy => front::proxy::serve(client, stream).await,
            Asked::Captured(Destination::Name { name, port }) => {
                front::captured::serve(client, stream, &name, port).await
            }
            Asked::Captured(Destination::Address(address)) => {
                let host = domain::host::Host::from(address.ip());
                front::captured::serve(client, stream, &host.to_string(), address.port()).await
            }
            Asked::Dns => front::dns::serve(client, stream, &place.sandbox).await,
            Asked::Udp(address) => front::udp::serve(client, stream, address).await,
        }
    }

    /// Takes one of the places of a sandbox.
    fn place(self: &Arc<Self>, id: &SandboxId) -> Option<Place> {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let sandbox = sandboxes.entry(id.clone()).or_insert_with(|| {
            Arc::new(Sandbox { streams: Mutex::new(0), meter: Meter::new(Instant::now()) })
        });
        let mut streams = sandbox.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if *streams >= self.limits.streams {
            return None;
        }
        *streams += 1;
        drop(streams);
        Some(Place { engine: self.clone(), id: id.clone(), sandbox: sandbox.clone() })
    }
}

/// The place of one stream; free when dropped.
struct Place {
    engine: Arc<Engine>,
    id: SandboxId,
    sandbox: Arc<Sandbox>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sandboxes = self.engine.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut streams = self.sandbox.streams.lock().unwrap_or_else(PoisonError::into_inner);
        *streams -= 1;
        if *streams == 0 {
            sandboxes.remove(&self.id);
        }
    }
}

/// Says no in the words of a front, before anything is known of the request.
async fn refuse(stream: &mut Stream, front: &Asked, code: Code) -> io::Result<()> {
    use tokio::io::AsyncWriteExt as _;
    match front {
        Asked::Captured(_) | Asked::Udp(_) => {
            let code = code.as_str().to_owned();
            egress::write(stream, &Verdict::Refused { code }).await
        }
        Asked::Named | Asked::Proxy => {
            let refusal = crate::code::Refusal::new(
                code,
                "gateway",
                "the gateway cannot do this now; try again",
            );
            stream.write_all(&crate::http::problem::raw(&refusal)).await
        }
        // A resolver that is cut off is asked again.
        Asked::Dns => Ok(()),
    }
}
