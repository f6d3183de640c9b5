//! Running a program in a sandbox of its own, without a server.

use std::{sync::Arc, time::Instant};

use clap::Args;
use domain::{ending::Cause, id::SandboxId, image::ImageName, size::Resources};
use guest_protocol::client::GuestClient;
use sandbox::{
    guest::HostedGuest,
    host::{Host, NoLedger},
    spec::{Personality, SandboxSpec, Source},
};
use store::images::ImageStore;
use tokio::time::timeout;

use super::{Configured, Json, Places, ProgramArgs, SizeArgs, block_on, image, report};
use crate::{
    config::Config,
    error::{Failure, Kind, Outcome},
    local::{self, Lifetime, Place},
    log,
    output::Format,
    process::{self, Signals, Sink},
    progress,
};

/// How long to wait for the reason when a sandbox is lost.
const REASON: std::time::Duration = std::time::Duration::from_secs(5);

/// Run a program in a sandbox of its own and exit with its code
///
/// The sandbox is a virtual machine without a network device, made for this one
/// program and gone afterwards, also when this command is killed. No server is
/// needed or used, even where COLDFRAME_URL is set. Nothing of this machine is
/// in the sandbox: no folder, no variable that --env does not name.
///
/// Output is passed on unchanged, INT, TERM, HUP and QUIT are forwarded; the
/// same signal twice within two seconds ends the sandbox at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    coldframe run -- python3 -c 'print(6 * 7)'\n  \
    coldframe run -i -- sh -c 'wc -l' < data.csv\n  \
    coldframe run -it -- bash\n  \
    coldframe run --timeout 10s --json -- make test")]
pub(crate) struct RunArgs {
    /// What the sandbox starts from
    #[arg(long, default_value = "base", value_name = "NAME")]
    template: String,

    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    pub(super) json: Json,

    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the program.
pub(super) fn run(configured: &Configured<'_>, arguments: &RunArgs) -> Outcome<u8> {
    log::of_command()?;
    let config = configured.load(&arguments.places.overrides())?;
    let launch = arguments.program.launch(&arguments.command)?;
    let resources = arguments.size.resources(&config)?;
    let name = arguments
        .template
        .parse()
        .map_err(|error| Failure::usage(format!("--template: {error}")))?;
    local::require_root("run")?;
    let format = arguments.json.format();
    block_on(async {
        let mut signals = Signals::listen()?;
        let mut sink = match format {
            Format::Text => Sink::ours()?,
            Format::Json => Sink::memory(),
        };
        let begun = Instant::now();
        let ended =
            with_sandbox(&config, &name, resources, &mut signals, async |guest, signals| {
                process::drive(guest, &launch, &mut sink, signals).await
            });
        let ended = ended.await?;
        report(&launch, ended, sink, begun.elapsed())
    })
}

/// Makes a sandbox for as long as `work` takes, and nothing is left of it.
pub(super) async fn with_sandbox<T>(
    config: &Config,
    name: &ImageName,
    resources: Resources,
    signals: &mut Signals,
    work: impl AsyncFnOnce(&GuestClient<HostedGuest>, &mut Signals) -> Outcome<T>,
) -> Outcome<T> {
    let images = ImageStore::open(config.images()).map_err(image::failure)?;
    // Held to the end: nobody replaces the image under the machine.
    let image = images.hold(name).map_err(image::failure)?;
    let place = Place::make(config)?;
    let backend = local::backend(config, place.path(), Lifetime::EndsWithCaller)?;
    let host = Host::new(backend, Arc::new(NoLedger), local::sources());
    let mut random = [0; 16];
    (local::sources().random)(&mut random);
    let id = SandboxId::from_random(random);
    let spec = SandboxSpec {
        image: image.clone(),
        resources,
        source: Source::Template,
        disks: Vec::new(),
    };
    let worked = started(&host, &id, spec, signals, work).await;
    // Whatever happened: when this returns, nothing of the machine is left.
    let removed = match host.terminate(&id, Cause::Requested).await {
        Ok(_) | Err(sandbox::host::HostError::NotFound) => place.remove(),
        Err(error) => Err(error.into()),
    };
    local::sweep(config).await;
    let worked = worked?;
    removed?;
    Ok(worked)
}

async fn started<T>(
    host: &Host,
    id: &SandboxId,
    spec: SandboxSpec,
    signals: &mut Signals,
    work: impl AsyncFnOnce(&GuestClient<HostedGuest>, &mut Signals) -> Outcome<T>,
) -> Outcome<T> {
    let waiting = progress::waiting("starting; the first time of an image and size boots it once");
    let started = tokio::select! {
        started = host.start(id.clone(), spec, Personality::default(), None) => {
            started.map_err(Failure::from)
        }
        signal = signals.stop() => {
            let message = format!("signal {signal} came before the program ran");
            Err(Failure::new(Kind::Stopped(signal), message))
        }
    };
    waiting.finish_and_clear();
    started?;
    let guest = GuestClient::new(HostedGuest { host: host.clone(), id: id.clone() });
    let worked = work(&guest, signals).await;
    match worked {
        // The stream breaks before the reason is known.
        Err(failure) if failure.kind == Kind::Unreachable => {
            match timeout(REASON, host.ended(id)).await {
                Ok(Ok(ending)) => Err(ending.into()),
                Ok(Err(_)) | Err(_) => Err(failure),
            }
        }
        worked => worked,
    }
}
