//! `cargo xtask test` and `ci`: every check there is, in the order in which a
//! failure is cheapest to find.
//!
//! All checks are run even after one has failed, so that one run tells all. The
//! last line is `N passed, N failed`, summed over every test of every step; a
//! step that is no test (formatting, lints, tidy …) counts as one. What cannot
//! run here is listed as `not run` with the reason, and is never counted as
//! passed.
//!
//! Tests run under `cargo test` and not under a runner that starts a process for
//! each: the tests of one file share a Postgres server or a booted template, and
//! a fresh machine and a developer's then do the same.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;

use crate::{
    binaries::{self, Binaries, Profile},
    conformance, privilege,
    progress::Progress,
    setup::{self, Purpose},
    tidy, workspace,
};

mod count;
mod plan;

use count::Count;
pub(crate) use plan::build_image;

/// Run every check and every test
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Take only the steps whose names begin like one of these
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
}

/// What came of one step.
#[derive(Debug)]
enum Outcome {
    Counted(Count),
    NotRun(String),
}

/// A step that was taken.
#[derive(Debug)]
struct Taken {
    name: &'static str,
    outcome: Outcome,
    seconds: f64,
}

/// What earlier steps made and later ones use.
#[derive(Debug, Default)]
struct Made {
    binaries: Option<Binaries>,
    has_image: bool,
}

impl Made {
    /// The programs, built if no step has done it yet.
    fn binaries(&mut self) -> anyhow::Result<&Binaries> {
        if self.binaries.is_none() {
            self.binaries = Some(binaries::build(Profile::Dev)?);
        }
        self.binaries.as_ref().context("they were just built")
    }

    /// Builds the image if no step has done it yet.
    fn image(&mut self) -> anyhow::Result<()> {
        if !self.has_image {
            build_image()?;
        }
        self.has_image = true;
        Ok(())
    }
}

/// Runs `cargo xtask test`.
pub(crate) fn run(arguments: &TestArgs) -> anyhow::Result<ExitCode> {
    let wanted = |name: &str| {
        let mut steps = arguments.steps.iter();
        arguments.steps.is_empty() || steps.any(|step| name.starts_with(step))
    };
    let steps: Vec<_> = plan::STEPS.iter().filter(|step| wanted(step.name)).collect();
    let names: Vec<_> = steps.iter().map(|step| step.name).collect();
    ensure!(!steps.is_empty(), "no step is called that; they are: {}", plan::names().join(", "));
    let mut progress = Progress::new("test", &names);
    let mut made = Made::default();
    let mut taken = Vec::new();
    for step in steps {
        let outcome = progress.step(|| (step.run)(&mut made)).unwrap_or_else(|error| {
            println!("{error:#}");
            Outcome::Counted(Count::failure(step.name))
        });
        taken.push(Taken { name: step.name, outcome, seconds: progress.last().as_secs_f64() });
    }
    let total = summarize(&taken);
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what came of each step and returns the sum.
fn summarize(taken: &[Taken]) -> Count {
    let mut total = Count::default();
    println!("\n{:<34} {:>8}  result", "step", "seconds");
    for Taken { name, outcome, seconds } in taken {
        println!("{name:<34} {seconds:>8.1}  {}", outcome.shown());
        if let Outcome::Counted(count) = outcome {
            total.add(count);
        }
    }
    for name in &total.names {
        println!("failed: {name}");
    }
    let mut reasons = total.not_run.clone();
    reasons.sort();
    reasons.dedup();
    for reason in reasons {
        let count = total.not_run.iter().filter(|other| **other == reason).count();
        println!("not run: {count} tests: {reason}");
    }
    println!();
    total
}

impl Outcome {
    /// A step that is no test and succeeded.
    fn passed() -> Self {
        Self::Counted(Count { passed: 1, ..Count::default() })
    }

    fn shown(&self) -> String {
        match self {
            Self::Counted(count) if count.failed > 0 => format!("{} FAILED", count.failed),
            Self::Counted(count) if count.not_run.is_empty() => format!("{} passed", count.passed),
            Self::Counted(count) => {
                format!("{} passed, {} not run", count.passed, count.not_run.len())
            }
            Self::NotRun(reason) => format!("not run: {reason}"),
        }
    }
}
