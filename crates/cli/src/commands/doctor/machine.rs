//! Whether machines run here, which the backend finds out by running one, and
//! whether the template that most sandboxes start from is there.

use backends::qemu::{
    self,
    probe::{Check, Verdict},
};

use super::{Finding, Report};
use crate::{
    config::Config,
    error::Outcome,
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

fn finding(check: Check) -> Finding {
    let remedy = check.remedy.unwrap_or_default();
    match check.verdict {
        Verdict::Good => Finding::ok(check.subject, check.found),
        Verdict::Limited => Finding::warn(check.subject, check.found, remedy),
        Verdict::Missing => Finding::fail(check.subject, check.found, remedy),
    }
}
