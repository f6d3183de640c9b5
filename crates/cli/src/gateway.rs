//! The server's end of the gateway: starting it, keeping it, and carrying
//! streams to it.
//!
//! The gateway is this program again, under an account of its own. It is started
//! with nothing but a channel to us and two descriptors: the socket at which
//! streams arrive, and its folder. The socket lies in a folder that only we can
//! enter, so only we can say whose stream it is. When the gateway dies it is
//! started again after a pause; until it is back, no stream is taken by anybody.

mod channel;
mod supervise;

use std::{
    collections::HashMap,
    fmt, io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{
            fs::{DirBuilderExt as _, chown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use control::egress::{StoreJournal, StoreRules};
use domain::id::SandboxId;
use gateway::{
    rules::Rules,
    splice::{Moved, splice},
    wire::{Hand, ToGateway, write_hand},
};
use guest_protocol::mux::Stream;
use sandbox::egress::Egress;
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
    time::timeout,
};

use crate::{
    config::{Config, LogFormat},
    error::Outcome,
    state,
};

/// How long a stream waits for a gateway that is being started.
const START: Duration = Duration::from_secs(10);
/// A stream in which nothing moves; the gateway ends its own sooner.
const IDLE: Duration = Duration::from_secs(3600);
/// Orders that wait to be sent.
const ORDERS: usize = 1024;

/// What the gateway asks and tells.
pub(crate) struct Facts {
    /// Rules of live sandboxes.
    pub(crate) rules: StoreRules,
    /// Decisions.
    pub(crate) journal: StoreJournal,
}

impl Facts {
    /// The rules of a sandbox. One whose rules cannot be read has none now; its
    /// next stream asks again.
    async fn rules(&self, sandbox: &SandboxId) -> Option<Rules> {
        match self.rules.of(sandbox).await {
            Ok(rules) => rules,
            Err(error) => {
                tracing::error!(sandbox.id = %sandbox, error = &error as &dyn std::error::Error, "the rules of a sandbox cannot be read");
                None
            }
        }
    }
}

/// The gateway, as the server sees it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway {
    shared: Arc<Shared>,
}

struct Shared {
    /// The folder with the socket, held open: its path may be longer than a
    /// socket's may be.
    folder: std::fs::File,
    orders: mpsc::Sender<ToGateway>,
    ready: watch::Receiver<bool>,
    generations: Mutex<HashMap<SandboxId, u64>>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("ready", &*self.shared.ready.borrow()).finish()
    }
}

/// Name of the socket in its folder.
const SOCKET: &str = "streams";

impl Gateway {
    /// Prepares it. The future starts it and keeps it running; dropping that ends
    /// it.
    pub(crate) fn new(
        config: &Config,
        facts: Facts,
    ) -> Outcome<(Self, impl Future<Output = ()> + Send + use<>)> {
        let streams = config.state_dir.join("gateway");
        state::private_folder(&streams)?;
        let own = own_folder(&config.state_dir.join("gateway-keys"), config.gateway_uid)?;
        let folder = std::fs::File::open(&streams)?;
        let path = through(&folder);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let (orders, wanted) = mpsc::channel(ORDERS);
        let (ready_sender, ready) = watch::channel(false);
        let shared = Arc::new(Shared { folder, orders, ready, generations: Mutex::default() });
        let gateway = Self { shared };
        let supervising = supervise::Supervisor {
            uid: config.gateway_uid,
            arguments: arguments(config),
            listener,
            own,
            facts,
            ready: ready_sender,
        };
        Ok((gateway, supervising.run(wanted)))
    }

    async fn open(&self, sandbox: &SandboxId) -> io::Result<UnixStream> {
        let mut ready = self.shared.ready.clone();
        let waiting = timeout(START, ready.wait_for(|ready| *ready));
        if !matches!(waiting.await, Ok(Ok(_))) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let generation = self.generations().get(sandbox).copied().unwrap_or(0);
        let mut stream = UnixStream::connect(through(&self.shared.folder)).await?;
        write_hand(&mut stream, &Hand { sandbox: sandbox.clone(), generation }).await?;
        Ok(stream)
    }

    fn generations(&self) -> MutexGuard<'_, HashMap<SandboxId, u64>> {
        lock(&self.shared.generations)
    }
}

#[async_trait]
impl Egress for Gateway {
    async fn carry(&self, sandbox: &SandboxId, mut stream: Stream) {
        match self.open(sandbox).await {
            Ok(mut outer) => {
                let moved = Moved::default();
                // How it ended is between the guest and the gateway.
                drop(splice(&mut stream, &mut outer, &moved, IDLE).await);
            }
            Err(error) => {
                tracing::debug!(sandbox.id = %sandbox, %error, "a stream found no gateway");
            }
        }
    }
}

#[async_trait]
impl control::egress::Gateway for Gateway {
    fn ready(&self) -> bool {
        *self.shared.ready.borrow()
    }

    async fn publish(&self, rules: Rules) {
        self.generations()
            .entry(rules.sandbox.clone())
            .and_modify(|known| *known = (*known).max(rules.generation))
            .or_insert(rules.generation);
        // What is lost on the way is asked for: the streams that need it name
        // its generation.
        drop(self.shared.orders.try_send(ToGateway::Rules(Box::new(rules))));
    }

    async fn forget(&self, sandbox: &SandboxId) {
        self.generations().remove(sandbox);
        // The gateway that is not there knows nothing of it.
        drop(self.shared.orders.try_send(ToGateway::Forget(sandbox.clone())));
    }
}

/// What the gateway is told beside its descriptors.
fn arguments(config: &Config) -> Vec<String> {
    let format = match config.log_format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    let mut arguments = vec!["--log".to_owned(), config.log.clone()];
    arguments.extend(["--log-format".to_owned(), format.to_owned()]);
    if let Some(roots) = &config.upstream_roots {
        arguments.extend(["--roots".to_owned(), roots.display().to_string()]);
    }
    for server in &config.dns_servers {
        arguments.extend(["--dns-server".to_owned(), server.to_string()]);
    }
    arguments
}

/// The socket's path, however long that of the folder is.
fn through(folder: &std::fs::File) -> PathBuf {
    format!("/proc/self/fd/{}/{SOCKET}", folder.as_fd().as_raw_fd()).into()
}

/// A folder that only the gateway's account can enter, beside us.
fn own_folder(path: &Path, uid: u32) -> Outcome<std::fs::File> {
    if !path.exists() {
        std::fs::DirBuilder::new().mode(0o700).create(path)?;
    }
    chown(path, Some(uid), Some(uid))?;
    Ok(std::fs::File::open(path)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
