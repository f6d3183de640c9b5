//! What this host can do, found out by doing it.
//!
//! A device file proves nothing: KVM counts as working only when a processor of
//! a machine has run with it, confined as every machine is, with the processor
//! model that sandboxes get. The same run without KVM proves the confinement.
//!
//! The findings are kept in the state folder for as long as the host has not been
//! restarted and QEMU's files are the same, because `coldframe run` should not
//! measure its host each time. `coldframe doctor` always looks again.

use std::{
    fs, io,
    os::{
        fd::AsFd as _,
        unix::fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    build::{self, Build},
    cgroup::{Hierarchy, Limits},
    clock,
    command::{Accelerator, number},
    jail::order::Lifetime,
    launch::{self, Launch, Launcher},
    memfd, pidfd,
    record::{Folder, Process},
    uids::Uids,
};

/// Changes whenever older findings must not be believed.
const FORMAT: u32 = 1;
/// How long a machine with nothing to do may take.
const TRIAL: Duration = Duration::from_secs(10);
/// What the trial program makes QEMU exit with.
const TRIAL_EXIT: i32 = 33;

/// What was found, check by check.
#[derive(Clone, Debug)]
pub struct Probe {
    /// In the order in which they were made.
    pub checks: Vec<Check>,
    /// Present if machines can run.
    pub(super) findings: Option<Findings>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What, such as `KVM`.
    pub subject: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found, in one sentence.
    pub found: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Sandboxes run, but not as well as they could.
    Limited,
    /// Sandboxes cannot run.
    Missing,
}

/// What machines of this host are started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Findings {
    format: u32,
    boot: String,
    kvm_device: Option<(u64, u32, u32)>,
    pub(super) build: Build,
    pub(super) accelerator: Accelerator,
    pub(super) tsc_khz: u64,
}

/// Where things are, for probing.
#[derive(Clone, Debug)]
pub(super) struct Places<'a> {
    pub(super) qemu: &'a Path,
    pub(super) jailer: &'a Path,
    pub(super) state: &'a Path,
    pub(super) uids: &'a Uids,
}

/// What an earlier process found, if it still holds.
pub(super) fn remembered(state: &Path) -> Option<Findings> {
    let findings: Findings = serde_json::from_slice(&fs::read(file(state)).ok()?).ok()?;
    let holds = findings.format == FORMAT
        && findings.boot == boot_id().ok()?
        && findings.kvm_device == kvm_device()
        && findings.build.is_current();
    holds.then_some(findings)
}

/// Looks at everything.
pub(super) fn probe(places: &Places<'_>) -> Probe {
    let mut checks = Vec::new();
    let findings = look(places, &mut checks);
    if let Some(findings) = &findings {
        // Without it the next process looks again.
        let text = serde_json::to_vec(findings).unwrap_or_default();
        fs::write(file(places.state), text).unwrap_or_default();
    }
    Probe { checks, findings }
}

/// Finds the hierarchy that machines are limited in.
pub(super) fn hierarchy() -> io::Result<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let hierarchy = Hierarchy::find(&mounts)
        .ok_or_else(|| io::Error::other("no hierarchy has the memory, cpu and pids controllers"))?;
    hierarchy.prepare()?;
    hierarchy.sweep(&["trial-", "template-"]);
    Ok(hierarchy)
}

/// Whether this process has the rights that the jailer needs.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn look(places: &Places<'_>, checks: &mut Vec<Check>) -> Option<Findings> {
    checks.push(rights());
    let hierarchy = keep(
        checks,
        "limits",
        hierarchy(),
        |hierarchy| format!("{} with memory, cpu and pids", hierarchy.version()),
        "mount cgroup v2 with the memory, cpu and pids controllers; in a container, start it with \
        the host's cgroup namespace and a writable /sys/fs/cgroup",
    );
    let build = keep(
        checks,
        "QEMU",
        build::prepare(places.qemu, &places.state.join("jail")),
        |build| format!("version {}, build {}", build.version, &build.digest.hex()[..16]),
        "install qemu-system-x86 (7.2 or later), or point the configuration at another QEMU",
    );
    let tsc_khz = keep(
        checks,
        "clock",
        clock::measure_khz(),
        |khz| format!("the host's counter runs at {khz} kHz"),
        "use a host with a constant time stamp counter",
    );
    let (hierarchy, build, tsc_khz) = (hierarchy?, build?, tsc_khz?);
    if !is_root() {
        return None;
    }
    let trial = |accelerator| trial(places, &hierarchy, &build, accelerator);
    let confined = keep(
        checks,
        "confinement",
        trial(Accelerator::Tcg),
        |()| "a machine ran as a user of its own, in its own namespaces, with no rights".into(),
        "run as root on Linux 5.11 or later, and in a container with the rights to mount and to \
         make namespaces (privileged)",
    );
    confined?;
    let accelerator = accelerator(checks, trial(Accelerator::Kvm));
    let boot = boot_id().ok()?;
    Some(Findings { format: FORMAT, boot, kvm_device: kvm_device(), build, accelerator, tsc_khz })
}

fn rights() -> Check {
    let subject = "rights";
    if is_root() {
        let found = "runs as root, which confining a machine needs".into();
        return Check { subject, verdict: Verdict::Good, found, remedy: None };
    }
    Check {
        subject,
        verdict: Verdict::Missing,
        found: "does not run as root, so machines cannot be confined".into(),
        remedy: Some("run the server as root, or use a server with COLDFRAME_URL".into()),
    }
}

fn accelerator(checks: &mut Vec<Check>, trial: io::Result<()>) -> Accelerator {
    let subject = "KVM";
    let (accelerator, check) = match trial {
        Ok(()) => {
            let found = "a machine ran on the host's processors".into();
            (Accelerator::Kvm, Check { subject, verdict: Verdict::Good, found, remedy: None })
        }
        Err(error) => {
            let found = format!("not usable ({error}); machines are translated, which is slower");
            let remedy = "enable virtualisation in the firmware, or nested virtualisation on the \
                          outer host, and load the kvm module";
            let remedy = Some(remedy.to_owned());
            (Accelerator::Tcg, Check { subject, verdict: Verdict::Limited, found, remedy })
        }
    };
    checks.push(check);
    accelerator
}

fn keep<T>(
    checks: &mut Vec<Check>,
    subject: &'static str,
    result: io::Result<T>,
    found: impl FnOnce(&T) -> String,
    remedy: &str,
) -> Option<T> {
    let (value, check) = match result {
        Ok(value) => {
            let found = found(&value);
            (Some(value), Check { subject, verdict: Verdict::Good, found, remedy: None })
        }
        Err(error) => {
            let remedy = Some(remedy.to_owned());
            (None, Check { subject, verdict: Verdict::Missing, found: error.to_string(), remedy })
        }
    };
    checks.push(check);
    value
}

/// Runs a machine whose only program tells QEMU to end with a certain code.
fn trial(
    places: &Places<'_>,
    hierarchy: &Hierarchy,
    build: &Build,
    accelerator: Accelerator,
) -> io::Result<()> {
    if accelerator == Accelerator::Kvm && kvm_device().is_none() {
        return Err(io::Error::other("/dev/kvm is missing"));
    }
    // Two trials of one process must not end each other.
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    let number = TRIALS.fetch_add(1, Ordering::Relaxed);
    let folder = Folder::at(places.state.join(format!("trial-{number}-{}", std::process::id())));
    let group = hierarchy.own_group(&format!("trial-{number}"));
    let claim = places.uids.claim()?;
    let uid = claim.uid;
    let run = || {
        folder.create()?;
        group.create(&Limits { memory_bytes: 256 << 20, cpu_percent: 200, processes: 32 })?;
        let (log, log_number) = launch::log(&folder.complaints())?;
        let firmware = memfd::sealed("coldframe-trial", &[&program()])?;
        let launcher = Launcher::new(places.jailer.to_owned(), build.clone())?;
        let launch = Launch {
            group: &group,
            uid,
            kvm: accelerator == Accelerator::Kvm,
            lifetime: Lifetime::EndsWithCaller,
            max_file_bytes: 0,
            max_processes: 32,
            arguments: arguments(accelerator),
            descriptors: vec![
                (log.as_fd(), log_number),
                (firmware.as_fd(), number::KERNEL),
                (claim.lock.as_fd(), number::USER),
            ],
        };
        let pid = launcher.start(&launch).map_err(|error| io::Error::other(chain(&error)))?;
        let code = exit_code(pid)?;
        if code == Some(TRIAL_EXIT) {
            return Ok(());
        }
        let complaint = fs::read(folder.complaints()).unwrap_or_default();
        let complaint = super::console::last_line(&complaint);
        let fallback = || match code {
            Some(code) => format!("QEMU ended with code {code}"),
            None => "the trial machine did not end".to_owned(),
        };
        Err(io::Error::other(complaint.unwrap_or_else(fallback)))
    };
    let result = run();
    let deadline = Instant::now() + TRIAL;
    group.kill(deadline);
    let removed = group.remove(deadline).and_then(|()| folder.remove());
    drop(claim);
    places.uids.release(uid);
    result.and(removed)
}

/// A boot ROM: `mov al, 16; out 0xf4, al; hlt` where a processor starts.
fn program() -> Vec<u8> {
    let mut rom = vec![0xf4; 64 * 1024];
    rom[0xfff0..0xfff6].copy_from_slice(&[0xb0, 0x10, 0xe6, 0xf4, 0xf4, 0xf4]);
    rom
}

fn arguments(accelerator: Accelerator) -> Vec<String> {
    let (accelerator, processor) = match accelerator {
        Accelerator::Kvm => ("kvm", "host"),
        Accelerator::Tcg => ("tcg", "max"),
    };
    let firmware = format!("/proc/self/fd/{}", number::KERNEL);
    let line = [
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-L",
        "/firmware",
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-M",
        "microvm",
        "-accel",
        accelerator,
        "-cpu",
        processor,
        "-m",
        "16M",
        "-bios",
        &firmware,
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=4",
    ];
    line.map(str::to_owned).to_vec()
}

/// Waits for our child to end. None if it does not.
fn exit_code(pid: i32) -> io::Result<Option<i32>> {
    let process = Process::observe(pid)?.open();
    let process = process.ok_or_else(|| io::Error::other("the trial machine vanished"))?;
    if !pidfd::wait(&process, TRIAL)? {
        launch::reap(pid);
        return Ok(None);
    }
    Ok(pidfd::take_status(&process).and_then(|status| status.exit_status()))
}

fn chain(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

fn file(state: &Path) -> PathBuf {
    state.join("host.json")
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Changes when the device comes, goes or changes hands.
fn kvm_device() -> Option<(u64, u32, u32)> {
    let status = fs::metadata("/dev/kvm").ok()?;
    let device = status.file_type().is_char_device();
    device.then(|| (status.rdev(), status.mode(), status.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_program_is_where_a_processor_starts() {
        let rom = program();
        assert_eq!(rom.len(), 64 * 1024);
        assert_eq!(rom[rom.len() - 16..][..4], [0xb0, 0x10, 0xe6, 0xf4]);
        assert_eq!(TRIAL_EXIT, 0x10 << 1 | 1);
    }

    #[test]
    fn a_host_without_kvm_is_limited_and_says_what_to_do() {
        let mut checks = Vec::new();
        let found = accelerator(&mut checks, Err(io::Error::other("/dev/kvm is missing")));
        assert_eq!(found, Accelerator::Tcg);
        assert_eq!(checks[0].verdict, Verdict::Limited);
        assert!(checks[0].found.contains("/dev/kvm is missing"));
        assert!(checks[0].remedy.is_some());
    }
}
