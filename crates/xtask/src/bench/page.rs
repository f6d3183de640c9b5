//! The record as a page for people.

use super::{
    record::{Record, Way},
    samples::Samples,
};

/// Where the page is, seen from the root of the checkout.
pub(super) const FILE: &str = "docs/reference/bench.md";

/// A goal and how near this run came to it.
#[derive(Debug)]
struct Target {
    what: String,
    /// The most it should be.
    most: f64,
    measured: Option<f64>,
    unit: &'static str,
}

/// Renders a record.
pub(super) fn render(record: &Record) -> String {
    let mut page = String::from(
        "# Measurements\n\n\
         Made by `cargo xtask bench start --write`; do not edit.\n\
         All numbers are from one run on one machine, with the ways taking turns.\n\
         Milliseconds, median and 95th percentile.\n\
         *Exit* is when the caller has the end: the program has ended and what was made for it is \
         removed.\n\n\
         ## Machine\n\n| | |\n|---|---|\n",
    );
    for (name, value) in &record.facts {
        page.push_str(&format!("| {name} | {value} |\n"));
    }
    page.push_str("\n## To start, run `echo`, and remove\n\n");
    page.push_str(&ways(&record.starts));
    if !record.inside.is_empty() {
        page.push_str(
            "\n## Where the time of a clone goes\n\n| Part | Median | p95 |\n|---|---:|---:|\n",
        );
        for (part, samples) in &record.inside {
            page.push_str(&format!("| {part} | {} |\n", pair(samples)));
        }
    }
    page.push_str("\n## A command in a running sandbox\n\n");
    page.push_str(&ways(&record.commands));
    if !record.memory.is_empty() {
        page.push_str(
            "\n## Memory of idle `small` sandboxes\n\n\
             | Sandboxes | PSS of each, MiB | Server, MiB |\n|---:|---:|---:|\n",
        );
        for memory in &record.memory {
            let (each, server) = (memory.each, memory.server);
            page.push_str(&format!("| {} | {each:.1} | {server:.1} |\n", memory.sandboxes));
        }
    }
    if !record.crowds.is_empty() {
        page.push_str(
            "\n## Creates at the same moment\n\n\
             | Sandboxes | Median | p95 | Longest |\n|---:|---:|---:|---:|\n",
        );
        for crowd in &record.crowds {
            let (count, longest) = (crowd.sandboxes, crowd.created.max());
            page.push_str(&format!("| {count} | {} | {longest:.0} |\n", pair(&crowd.created)));
        }
    }
    page.push_str("\n## Goals\n\n| Goal | At most | Measured | |\n|---|---:|---:|---|\n");
    for target in targets(record) {
        page.push_str(&target.row());
    }
    page
}

impl Target {
    fn row(&self) -> String {
        let Self { what, most, measured, unit } = self;
        let (shown, verdict) = match measured {
            None => ("–".to_owned(), "not measured"),
            Some(value) if value <= most => (format!("{value:.2}{unit}"), "met"),
            Some(value) => (format!("{value:.2}{unit}"), "not met"),
        };
        format!("| {what} | {most}{unit} | {shown} | {verdict} |\n")
    }
}

fn ways(ways: &[Way]) -> String {
    let mut table =
        String::from("| | First output | p95 | Exit | p95 | n |\n|---|---:|---:|---:|---:|---:|\n");
    for Way { name, first, exit, parts } in ways {
        table.push_str(&format!(
            "| {name} | {} | {} | {} |\n",
            pair(first),
            pair(exit),
            exit.len()
        ));
        for (part, samples) in parts {
            table.push_str(&format!("| … {part} | | | {} | {} |\n", pair(samples), samples.len()));
        }
    }
    table
}

fn pair(samples: &Samples) -> String {
    let shown =
        |value: f64| if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} | {}", shown(samples.median()), shown(samples.p95()))
}

fn targets(record: &Record) -> Vec<Target> {
    let exit = |name| record.way(name).map(|way| way.exit.median());
    let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let ours = exit("sandbox, over a kept connection");
    let command = exit("exec, over a kept connection");
    let inner = record
        .way("exec, over a kept connection")
        .and_then(|way| way.parts.first())
        .map(|(_, samples)| samples.median());
    let outside = command.zip(inner).map(|(whole, inner)| (whole - inner).max(0.0));
    let target =
        |what: &str, most, measured, unit| Target { what: what.to_owned(), most, measured, unit };
    let mut targets = vec![
        target(
            "sandbox to exit / `docker run --rm`",
            0.9,
            ratio(ours, exit("docker run --rm")),
            " x",
        ),
        target("sandbox to exit / `runsc do`", 1.6, ratio(ours, exit("runsc do")), " x"),
        target(
            "`coldframe run` / `docker run --rm`",
            0.9,
            ratio(exit("coldframe run"), exit("docker run --rm")),
            " x",
        ),
        target("exec / `docker exec`", 0.8, ratio(command, exit("docker exec")), " x"),
        target(
            "exec outside the guest's fork and exec / `docker exec`",
            0.1,
            ratio(outside, exit("docker exec")),
            " x",
        ),
    ];
    for memory in &record.memory {
        let what = format!("PSS of each of {} idle sandboxes", memory.sandboxes);
        targets.push(target(&what, 40.0, Some(memory.each), " MiB"));
    }
    let cores: Option<f64> = record.facts.get("cores").and_then(|cores| cores.parse().ok());
    let single = record.crowds.first().map(|crowd| crowd.created.median());
    for crowd in record.crowds.iter().skip(1) {
        let fair = single.zip(cores).map(|(single, cores)| single * crowd.sandboxes as f64 / cores);
        let what = format!("p95 of {} creates / (single × n / cores)", crowd.sandboxes);
        targets.push(target(&what, 1.5, ratio(Some(crowd.created.p95()), fair), " x"));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::Way;

    #[test]
    fn a_goal_is_met_missed_or_not_measured() {
        let mut record = Record::new([("cores", "2".to_owned())].into());
        let way = |name, exit: f64| {
            let mut way = Way::new(name);
            way.first.push_millis(exit);
            way.exit.push_millis(exit);
            way
        };
        record.starts = vec![
            way("sandbox, over a kept connection", 150.0),
            way("docker run --rm", 300.0),
            way("runsc do", 50.0),
        ];
        let page = render(&record);
        assert!(page.contains("`docker run --rm` | 0.9 x | 0.50 x | met |"), "{page}");
        assert!(page.contains("`runsc do` | 1.6 x | 3.00 x | not met |"), "{page}");
        assert!(page.contains("exec / `docker exec` | 0.8 x | – | not measured |"), "{page}");
    }
}
