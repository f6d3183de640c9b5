//! Whether machines run here, which the backend finds out by running one, and
//! whether the template that most sandboxes start from is there.

use backends::qemu::{
    self,
    probe::{Check, Verdict},
};

use domain::{
    image::InvalidImageName,
    size::{Resources, SizeClass},
};
use sandbox::spec::{SandboxSpec, Source};
use store::images::ImageStore;

use super::{Finding, Report};
use crate::{
    commands::image,
    config::Config,
    error::{Failure, Outcome},
    local::{self, Lifetime},
    progress,
};

/// Adds the backend's checks. Returns whether machines can run.
pub(super) async fn examine(config: &Config, report: &mut Report, root: bool) -> Outcome<bool> {
    if !root {
        // The backend would say the same of every step.
        return Ok(false);
    }
    let Ok(machines) = local::machines(config, &config.state_dir, Lifetime::EndsWithCaller) else {
        // That the guest's program is missing has been said.
        return Ok(false);
    };
    let waiting = progress::waiting("running a machine that only ends");
    let probed = tokio::task::spawn_blocking(move || qemu::probe(&machines)).await;
    waiting.finish_and_clear();
    let probe = match probed {
        Ok(Ok(probe)) => probe,
        Ok(Err(error)) => {
            report.add(Finding::fail("machines", error.to_string(), "check cache_dir"))?;
            return Ok(false);
        }
        Err(error) => {
            report.add(Finding::fail("machines", error.to_string(), "report this"))?;
            return Ok(false);
        }
    };
    let mut usable = true;
    for check in probe.checks {
        if check.subject != "rights" {
            usable &= report.add(finding(check))?;
        }
    }
    Ok(usable)
}

/// Whether the first sandbox will wait for a machine to boot.
pub(super) async fn template(config: &Config) -> Finding {
    let check = "template";
    match ready(config).await {
        Ok(true) => Finding::ok(check, "of base and small, fits this host"),
        Ok(false) => Finding::warn(
            check,
            "none of base and small that fits this host, image and program",
            "nothing to do: the next start makes one, once, which takes some seconds",
        ),
        Err(failure) => Finding::fail(check, failure.message, "empty cache_dir while nothing runs"),
    }
}

async fn ready(config: &Config) -> Outcome<bool> {
    let images = ImageStore::open(config.images()).map_err(image::failure)?;
    let name =
        "base".parse().map_err(|error: InvalidImageName| Failure::usage(error.to_string()))?;
    let image = images.get(&name).map_err(image::failure)?;
    let spec = SandboxSpec {
        image,
        resources: Resources::of(SizeClass::default()),
        source: Source::Template,
        disks: Vec::new(),
    };
    local::has_template(config, &spec).await
}

fn finding(check: Check) -> Finding {
    let remedy = check.remedy.unwrap_or_default();
    match check.verdict {
        Verdict::Good => Finding::ok(check.subject, check.found),
        Verdict::Limited => Finding::warn(check.subject, check.found, remedy),
        Verdict::Missing => Finding::fail(check.subject, check.found, remedy),
    }
}
