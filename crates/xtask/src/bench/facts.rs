//! The machine and the programs that were measured.

use std::{collections::BTreeMap, fs, process::Command};

use super::{docker::Docker, peers::Peers};
use crate::{service::Place, workspace};

/// What a reader needs to know to compare, by name.
pub(super) type Facts = BTreeMap<&'static str, String>;

/// Asks the machine and each program.
pub(super) fn gather(place: &Place, docker: &Docker, peers: &Peers) -> anyhow::Result<Facts> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory: u64 = field(&memory, "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let runsc_flags =
        peers.runsc.as_ref().map_or("does not work here".into(), |flags| flags.join(" "));
    Ok(Facts::from([
        ("processor", field(&cpu, "model name")),
        ("cores", cores.to_string()),
        ("memory", format!("{} GiB", memory >> 20)),
        ("kernel", said(Command::new("uname").arg("-r"))),
        ("acceleration", acceleration(place)),
        ("load before", load.split(' ').next().unwrap_or_default().to_owned()),
        ("coldframe", said(place.command()?.arg("--version"))),
        (
            "commit",
            said(
                Command::new("git")
                    .args(["rev-parse", "--short", "HEAD"])
                    .current_dir(workspace::root()),
            ),
        ),
        ("qemu", said(Command::new("qemu-system-x86_64").arg("--version"))),
        ("docker", docker.version()),
        ("runsc", format!("{} ({runsc_flags})", said(Command::new("runsc").arg("--version")))),
        ("bwrap", said(Command::new("bwrap").arg("--version"))),
        ("date", said(Command::new("date").args(["--utc", "+%Y-%m-%d"]))),
    ]))
}

/// Whether the processor runs the sandboxes itself. Opening the device is a hint
/// and no proof; `coldframe doctor` runs a machine to find out.
fn acceleration(place: &Place) -> String {
    let doctor =
        place.command().map(|mut doctor| said_all(doctor.arg("doctor"))).unwrap_or_default();
    let line = doctor.lines().find(|line| line.contains("KVM") || line.contains("emulation"));
    line.unwrap_or("unknown").trim().to_owned()
}

fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// The first line that a program prints.
fn said(command: &mut Command) -> String {
    said_all(command).lines().next().unwrap_or("unknown").trim().to_owned()
}

fn said_all(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).into_owned()
}
