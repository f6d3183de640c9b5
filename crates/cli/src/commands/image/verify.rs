//! Whether an image is what it says: on disk, and inside a sandbox.

use clap::Args;
use domain::{
    image::{Image, ImageName, facts::Outcome as Fact},
    size::{Resources, SizeClass},
};
use serde_json::json;
use store::images::ImageStore;

use super::failure;
use crate::{
    commands::{Configured, Json, Places, block_on, run::with_sandbox},
    config::Config,
    error::{Failure, Kind, Outcome},
    local, log,
    output::{self, Format, Verdict},
    process::{self, Input, Launch, Signals, Sink, Terminal},
    progress,
};

/// How long checking the facts may take. Under software emulation a compiler
/// alone takes seconds.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(300);

/// Check an image: its signature, its files, and what is true inside
///
/// Every file is hashed again. Then a sandbox is started from the image, and
/// each fact that its manifest promises is checked in it, one line for each.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The image
    #[arg(default_value = "base")]
    name: ImageName,

    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    pub(super) json: Json,
}

/// Checks an image and says what holds.
pub(super) fn run(configured: &Configured<'_>, arguments: &VerifyArgs) -> Outcome<u8> {
    log::of_command()?;
    let config = configured.load(&arguments.places.overrides())?;
    let format = arguments.json.format();
    let images = ImageStore::open(config.images()).map_err(failure)?;
    let waiting = progress::waiting("hashing every file");
    let examined = images.examine(&arguments.name);
    waiting.finish_and_clear();
    let image = examined.map_err(failure)?;
    show(format, "its signature was made by a key that is trusted here", None)?;
    show(format, "every file is what its signed manifest says", None)?;
    local::require_root("image verify")?;
    let facts = block_on(inside(&config, &image))?;
    let failed = facts.iter().filter(|fact| fact.failure.is_some()).count();
    for fact in &facts {
        show(format, &fact.fact, fact.failure.as_deref())?;
    }
    if failed > 0 {
        let message = format!("{failed} of {} facts do not hold in {}", facts.len(), image.name);
        return Err(Failure::refused(message).hint("build or import the image again"));
    }
    if format == Format::Text {
        output::line(&format!("{}\t{}", image.name, image.digest))?;
    }
    Ok(0)
}

fn show(format: Format, fact: &str, failed: Option<&str>) -> Outcome<()> {
    match format {
        Format::Json => output::json(&json!({
            "fact": fact, "holds": failed.is_none(), "found": failed,
        })),
        Format::Text => {
            let verdict = if failed.is_none() { Verdict::Ok } else { Verdict::Fail };
            output::verdict(verdict, fact, failed.unwrap_or_default())
        }
    }
}

/// Checks the facts in a sandbox.
async fn inside(config: &Config, image: &Image) -> Outcome<Vec<Fact>> {
    let mut signals = Signals::listen()?;
    let resources = Resources::of(SizeClass::default());
    let launch = Launch {
        command: ["/bin/bash", "-c", &image.manifest.facts.script()].map(str::to_owned).to_vec(),
        environment: [].into(),
        cwd: None,
        user: "root".to_owned(),
        timeout: Some(LIMIT),
        input: Input::Empty,
        terminal: Terminal::No,
    };
    let mut sink = Sink::memory();
    let ended =
        with_sandbox(config, &image.name, resources, &mut signals, async |guest, signals| {
            process::drive(guest, &launch, &mut sink, signals).await
        });
    let ended = ended.await?;
    let Sink::Memory(said) = sink else {
        return Err(Failure::new(Kind::Internal, "the output was not kept"));
    };
    if ended.code() == 124 {
        return Err(Failure::new(Kind::TimedOut, "checking the facts took too long"));
    }
    Ok(image.manifest.facts.read(&String::from_utf8_lossy(&said.output.bytes)))
}
