//! How busy sandboxes are.

use std::time::Duration;

use api::metrics::Sample;
use clap::Args;
use domain::id::SandboxId;

use crate::{
    commands::{Configured, Json},
    error::{Failure, Kind, Outcome},
    output::{self, Format},
    process::Signals,
    remote::{Authority, ServerArgs},
};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// Show how busy a sandbox is
///
/// Processor use is that since the last look, and 100% is one processor. What is
/// used inside is what the sandbox says of itself. To look does not keep a
/// sandbox awake.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Look again every two seconds, until the sandbox ends or INT
    #[arg(short, long)]
    follow: bool,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) json: Json,

    /// The sandbox
    sandbox: SandboxId,
}

/// Shows the last sample, or one after another.
pub(super) async fn run(configured: &Configured<'_>, arguments: &StatsArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let mut signals = Signals::listen()?;
    let mut first = true;
    loop {
        let samples = client.metrics(&arguments.sandbox).await?.samples;
        let sample = samples
            .last()
            .ok_or_else(|| Failure::new(Kind::Unreachable, "the sandbox was not measured"))?;
        match arguments.json.format() {
            Format::Json => output::json(sample)?,
            Format::Text if arguments.follow && !first => output::line(&columns(sample))?,
            Format::Text if arguments.follow => {
                output::note(&heading());
                output::line(&columns(sample))?;
            }
            Format::Text => output::table(&["what", "now"], &rows(sample))?,
        }
        if !arguments.follow {
            return Ok(0);
        }
        first = false;
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = signals.stop() => return Ok(0),
        }
    }
}

fn rows(sample: &Sample) -> Vec<Vec<String>> {
    let named = [
        ("time", sample.time.to_string()),
        ("cpu", cpu(sample)),
        ("memory", of(sample.memory_used_bytes, sample.memory_total_bytes)),
        ("disk", of(sample.disk_used_bytes, sample.disk_total_bytes)),
        ("processes", processes(sample)),
        ("host memory", size(sample.host_memory_bytes)),
    ];
    named.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn heading() -> String {
    line(["TIME", "CPU", "MEMORY", "DISK", "PROCESSES", "HOST MEMORY"].map(str::to_owned))
}

fn columns(sample: &Sample) -> String {
    line([
        sample.time.to_string(),
        cpu(sample),
        of(sample.memory_used_bytes, sample.memory_total_bytes),
        of(sample.disk_used_bytes, sample.disk_total_bytes),
        processes(sample),
        size(sample.host_memory_bytes),
    ])
}

fn line(cells: [String; 6]) -> String {
    let [time, cpu, memory, disk, processes, host] = cells;
    format!("{time:<24}  {cpu:>7}  {memory:>17}  {disk:>17}  {processes:>9}  {host:>11}")
}

fn cpu(sample: &Sample) -> String {
    sample.cpu_percent.map_or_else(unknown, |percent| format!("{percent:.1}%"))
}

fn processes(sample: &Sample) -> String {
    sample.processes.map_or_else(unknown, |count| count.to_string())
}

fn of(used: Option<u64>, total: Option<u64>) -> String {
    match (used, total) {
        (Some(_), Some(_)) => format!("{} / {}", size(used), size(total)),
        _ => unknown(),
    }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(unknown, |bytes| format!("{} MiB", bytes >> 20))
}

/// What could not be measured.
fn unknown() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_shown_as_that() {
        let mut sample: Sample =
            serde_json::from_str(r#"{"time":"2026-01-02T03:04:05.000Z"}"#).unwrap();
        assert_eq!(columns(&sample).matches(" -").count(), 5);
        sample.cpu_percent = Some(150.04);
        sample.memory_used_bytes = Some(3 << 20);
        sample.memory_total_bytes = Some(512 << 20);
        assert_eq!(rows(&sample)[1][1], "150.0%");
        assert_eq!(rows(&sample)[2][1], "3 MiB / 512 MiB");
    }
}
