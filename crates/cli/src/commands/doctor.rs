//! Whether this machine can run sandboxes, and what to do where it cannot.
//!
//! Every line is something that was tried, not something that was read in a
//! configuration: the accelerator by running a machine, confinement by looking
//! at a confined process, the sandbox by starting one and trying to get out
//! of it (B25). Checks that need what an earlier one found missing are left out.

mod host;
mod inventory;
mod machine;

use clap::Args;
use serde::Serialize;

use super::{Configured, Json, Places, block_on};
use crate::{
    error::{Codes, Kind, Outcome},
    log,
    output::{self, Format, Verdict},
    progress,
};

/// Check whether this machine can run sandboxes, and say what to do
///
/// Exits with 0 if nothing failed. As root, a sandbox is started and examined
/// from inside and from outside.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    pub(super) json: Json,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// What was checked.
    check: String,
    /// How it is.
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    fn warn(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let verdict = Verdict::Warn;
        Self { check: check.to_owned(), verdict, found: found.into(), advice: Some(advice.into()) }
    }

    fn fail(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(check, found, advice) }
    }

    /// Whether later checks can build on it.
    fn holds(&self) -> bool {
        self.verdict != Verdict::Fail
    }
}

/// Shows findings as they come.
struct Report {
    format: Format,
    failed: usize,
}

impl Report {
    fn add(&mut self, finding: Finding) -> Outcome<bool> {
        let holds = finding.holds();
        self.failed += usize::from(!holds);
        match self.format {
            Format::Json => output::json(&finding)?,
            Format::Text => {
                output::verdict(finding.verdict, &finding.check, &finding.found)?;
                if let Some(advice) = &finding.advice {
                    output::advice(advice)?;
                }
            }
        }
        Ok(holds)
    }
}

/// Runs every check.
pub(super) fn run(configured: &Configured<'_>, arguments: &DoctorArgs) -> Outcome<u8> {
    log::of_command()?;
    let config = configured.load(&arguments.places.overrides())?;
    let mut report = Report { format: arguments.json.format(), failed: 0 };
    let root = report.add(host::root())?;
    let guest = report.add(host::guest_program())?;
    report.add(host::memory())?;
    report.add(host::disk(&config.state_dir))?;
    report.add(host::volumes())?;
    let image = report.add(host::image(&config))?;
    report.add(host::packer())?;
    block_on(async {
        let machine = machine::examine(&config, &mut report, root).await?;
        if root && guest && image && machine {
            report.add(machine::template(&config).await)?;
            let waiting = progress::waiting("starting a sandbox");
            let findings = inventory::take(&config).await;
            waiting.finish_and_clear();
            for finding in findings {
                report.add(finding)?;
            }
        }
        report.add(host::server(&config).await)?;
        report.add(host::gateway(&config))?;
        Ok(())
    })?;
    let code = if report.failed > 0 { Kind::Refused.code(Codes::Own) } else { 0 };
    Ok(code)
}
