//! A server: the parts put together, and their orderly end.
//!
//! The order of starting is the order of what may go wrong without harm: the
//! state folder is taken before the database is opened, what an earlier process
//! left is put in order before the first request, and the address is bound
//! before anyone is told of it.

use std::{io::IsTerminal as _, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use clap::Args;
use control::{
    Control,
    bootstrap::{Bootstrapped, FirstTokens, bootstrap},
    egress::{StoreJournal, StoreRules},
    images::{ImageFolder, Images as _},
    ledger::StoreLedger,
    settings::{Settings, SnapshotLimits, TierLimits},
    volumes::{VolumeLimits, Volumes},
};
use domain::{
    image::ImageName,
    size::{Resources, SizeClass},
};
use sandbox::{
    host::Host,
    spec::{SandboxSpec, Source},
};
use server::{Options, Server};
use store::{
    Store,
    disks::Disks,
    images::{ImageStore, built::BuiltImages},
    objects::Objects,
};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Configured, Places, block_on, image};
use crate::{
    config::{Config, LogFormat},
    duration,
    error::{Failure, Kind, Outcome, chain},
    gateway::{Facts, Gateway},
    local, log, output,
    process::Signals,
    progress,
    remote::{ADMIN_TOKEN_FILE, TOKEN_FILE},
    state,
};

/// The template that is made ready without being asked for.
const DEFAULT_IMAGE: &str = "base";
/// The folder in the state folder that holds the server's machines.
const MACHINES: &str = "machines";
/// The folder in the state folder that holds volumes.
const VOLUMES: &str = "volumes";
/// The file in the state folder under which the keys of snapshots are kept.
const SEALING_KEY: &str = "snapshots.key";
/// The folder in the state folder for images that are made of OCI images.
const BUILT: &str = "built";
const HANGUP: i32 = 1;
/// How long sandboxes that are being started may take to settle at the end.
const SETTLE: Duration = Duration::from_secs(10);
/// How long the whole end may take.
const END: Duration = Duration::from_secs(30);

/// Serve sandboxes over HTTP
///
/// The first start makes the installation: it prints where the tokens are, and
/// on a terminal the token for sandboxes itself. TERM and INT end the server in
/// order: streams end, sandboxes live on and are taken over by the next start.
/// A second signal ends it at once.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: the setting `listen`]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// Names under which clients may address it, separated by commas
    #[arg(long, value_name = "NAMES")]
    names: Option<String>,

    /// Database to use [default: a file in the state folder]
    #[arg(long, value_name = "URL")]
    database: Option<String>,

    /// The region this installation belongs to
    #[arg(long)]
    region: Option<String>,

    /// What to log, such as `info` or `info,sandbox=debug`
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,

    /// How to write the log
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,

    #[command(flatten)]
    places: Places,
}

impl ServeArgs {
    fn config(&self, configured: &Configured<'_>) -> Outcome<Config> {
        let mut flags = self.places.overrides();
        let format = self.log_format.map(|format| match format {
            LogFormat::Text => "text".to_owned(),
            LogFormat::Json => "json".to_owned(),
        });
        flags.extend([
            ("listen", self.listen.clone()),
            ("names", self.names.clone()),
            ("database", self.database.clone()),
            ("region", self.region.clone()),
            ("log", self.log.clone()),
            ("log_format", format),
        ]);
        configured.load(&flags)
    }
}

/// Serves until told to stop.
pub(crate) fn run(configured: &Configured<'_>, arguments: &ServeArgs) -> Outcome<u8> {
    let config = arguments.config(configured)?;
    log::of_server(&config)?;
    local::require_root("serve")?;
    raise_file_limit();
    let owned = state::own(&config.state_dir)?;
    let code = block_on(serve(&config));
    drop(owned);
    code
}

async fn serve(config: &Config) -> Outcome<u8> {
    let mut signals = Signals::listen()?;
    let sources = local::sources();
    let database = config.database();
    let store = Store::open(&database)
        .await
        .map_err(|error| Failure::because(Kind::Refused, "the database cannot be used", &error))?;
    let store = store
        .with_sealing_key(&config.state_dir.join(SEALING_KEY))
        .await
        .map_err(|error| Failure::because(Kind::Refused, "snapshots cannot be opened", &error))?;
    let keep = |tokens: &FirstTokens| keep(&config.state_dir, tokens);
    let first = bootstrap(&store, &config.region, &sources, keep).await.map_err(failure)?;
    state::folder(&config.images())?;
    let images = ImageStore::open(config.images()).map_err(image::failure)?;
    let built = BuiltImages::open(config.state_dir.join(BUILT), sources.random);
    let built = built.map_err(image::failure)?;
    let images = ImageFolder::with_built(images, built, config.registries.clone());
    let images = Arc::new(images);
    let backend =
        local::backend(config, &config.state_dir.join(MACHINES), local::Lifetime::Outlives)?;
    let kept = SnapshotLimits {
        max_paused: config.max_paused,
        max_named: config.max_snapshots,
        retention: Duration::from_secs(u64::from(config.pause_retention_hours) * 3600),
    };
    let rules = StoreRules::new(store.clone(), config.egress.clone());
    let (journal, writing) = StoreJournal::new(store.clone(), sources.clock, config.egress_log());
    let (gateway, keeping) = Gateway::new(config, Facts { rules, journal })?;
    let gateway_told: Arc<dyn control::egress::Gateway> = Arc::new(gateway.clone());
    let ledger = StoreLedger::new(store.clone(), sources).keeping(kept.retention);
    let ledger = Arc::new(ledger.with_gateway(Some(gateway_told.clone())));
    let (gateway_task, writing) = (tokio::spawn(keeping), tokio::spawn(writing.run()));
    let host = Host::with_egress(backend, ledger, sources, Arc::new(gateway));
    let mut settings = Settings::new(config.region.clone());
    settings.tier = TierLimits {
        max_cpus: config.max_cpus,
        max_memory_mib: config.max_memory_mb,
        max_concurrent: config.max_sandboxes,
    };
    settings.networks = config.networks.clone();
    settings.egress = config.egress.clone();
    settings.snapshots = kept;
    settings.gateway = Some(gateway_told);
    settings.pool = config.pool.clone();
    settings.totals = config.totals;
    settings.capacity = config.capacity;
    let control = Control::new(store.clone(), images.clone(), host.clone(), settings, sources)
        .map_err(failure)?;
    let control = control.with_volumes(volumes(config)?);
    let recovered = control.recover().await.map_err(failure)?;
    tracing::info!(?recovered, "took over what an earlier process left");

    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        Failure::refused(format!("cannot listen on {}: {error}", config.listen))
            .hint("choose another address with --listen")
    })?;
    let address = listener.local_addr()?;
    announce(config, address, first)?;

    let preparing = tokio::spawn(prepare(host, images));
    let measuring = {
        let control = control.clone();
        tokio::spawn(async move { control.keep_measuring().await })
    };
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(control.clone().keep(stop.clone()));
    let options = Options { names: config.names.clone(), ..Options::default() };
    let serving = Server::new(control.clone(), options).serve(listener, stop.clone());
    let mut serving = std::pin::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        signal = stop_signal(&mut signals) => {
            tracing::info!(signal, "stopping; a second signal stops at once");
            stop.cancel();
            preparing.abort();
            measuring.abort();
            let ending = async {
                let served = serving.await;
                drop(keeping.await);
                control.shut_down(SETTLE).await;
                // The gateway ends with the task that keeps it, and the journal
                // when nobody writes into it any more.
                gateway_task.abort();
                drop(gateway_task.await);
                drop(writing.await);
                store.close().await;
                served
            };
            tokio::select! {
                ended = timeout(END, ending) => ended.unwrap_or_else(|_| {
                    tracing::warn!("not everything ended in time; the next start puts it in order");
                    Ok(())
                }),
                signal = stop_signal(&mut signals) => {
                    let message = format!("signal {signal} cut the end short");
                    return Err(Failure::new(Kind::Stopped(signal), message));
                }
            }
        }
    };
    served?;
    tracing::info!("stopped; sandboxes live on for the next start");
    Ok(0)
}

/// The place of volumes and of their checkpoints.
fn volumes(config: &Config) -> Outcome<Volumes> {
    let disks = Disks::open(config.state_dir.join(VOLUMES))?;
    let objects = Objects::open(&config.objects())
        .map_err(|error| Failure::because(Kind::Refused, "`objects` cannot be used", &error))?;
    let limits = VolumeLimits {
        most_mib: config.max_volume_mb,
        most_total_mib: config.max_volumes_mb.into(),
        ..VolumeLimits::default()
    };
    Ok(Volumes::new(disks, objects, limits))
}

/// A signal that asks a server to end. That its terminal was closed does not.
async fn stop_signal(signals: &mut Signals) -> i32 {
    loop {
        let signal = signals.stop().await;
        if signal != HANGUP {
            return signal;
        }
    }
}

/// Stores the first tokens.
fn keep(state: &Path, tokens: &FirstTokens) -> std::io::Result<()> {
    state::keep_token(&state.join(ADMIN_TOKEN_FILE), &tokens.admin)?;
    state::keep_token(&state.join(TOKEN_FILE), &tokens.sandboxes)
}

/// Says where the server is and how to get in.
fn announce(config: &Config, address: SocketAddr, first: Bootstrapped) -> Outcome<()> {
    let token = config.state_dir.join(TOKEN_FILE);
    output::line(&format!("Coldframe listens on http://{address}"))?;
    if first == Bootstrapped::Now {
        output::line(&format!("token for sandboxes: {}", token.display()))?;
        let admin = config.state_dir.join(ADMIN_TOKEN_FILE);
        output::line(&format!("token for the administrator: {}", admin.display()))?;
        // Where this is not a terminal it is a log, and others read logs.
        if std::io::stdout().is_terminal() {
            let text = std::fs::read_to_string(&token)?;
            output::line(&format!(
                "\nexport COLDFRAME_URL=http://{address}\nexport COLDFRAME_TOKEN={}",
                text.trim()
            ))?;
        }
    }
    Ok(())
}

/// Makes the template that most sandboxes start from, so that the first one does
/// not wait for a machine to boot.
async fn prepare(host: Host, images: Arc<ImageFolder>) {
    let begun = std::time::Instant::now();
    let Ok(name) = DEFAULT_IMAGE.parse::<ImageName>() else { return };
    let image = match images.verified(&name).await {
        Ok(image) => image,
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(
                error,
                "no sandbox can start from {name} yet; `coldframe image import` brings one in"
            );
            return;
        }
    };
    let waiting = progress::waiting("making the template of base, once for each image and size");
    let spec = SandboxSpec {
        image,
        resources: Resources::of(SizeClass::default()),
        source: Source::Template,
        disks: Vec::new(),
    };
    let prepared = host.prepare(&spec).await;
    waiting.finish_and_clear();
    match prepared {
        Ok(()) => {
            let took = duration::show(begun.elapsed());
            tracing::info!("the template of {name} is ready after {took}");
        }
        Err(error) => {
            let error = chain(&error);
            tracing::error!(
                error,
                "the template of {name} could not be made; `coldframe doctor` says what is missing"
            );
        }
    }
}

/// Every sandbox and every client holds descriptors; the usual soft limit of
/// 1024 would be the first thing to run out.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

fn failure(error: control::error::Error) -> Failure {
    use control::error::Error as E;
    let kind = match error {
        E::Internal { .. } => Kind::Internal,
        E::Unavailable { .. } => Kind::Unreachable,
        _ => Kind::Refused,
    };
    Failure::new(kind, chain(&error))
}
