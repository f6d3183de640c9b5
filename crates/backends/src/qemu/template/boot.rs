//! The one cold boot behind every clone of a template.
//!
//! The machine boots with memory that is shared with us, the guest is asked to
//! touch what every sandbox will need, then the device state is written out, which
//! stops the machine while the link is connected and quiet, and it is let go. Its memory is then ours alone.
//!
//! Whatever happens, also when the caller stops waiting, nothing of the attempt
//! is left: [`Attempt`] removes it when it goes.

use std::{
    fs::File,
    future::Future,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use domain::image::digest::Digest;
use guest_protocol::{control::Request, preface::Preface};
use sandbox::{
    backend::BackendError,
    link::{self, Link},
    spec::SandboxSpec,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::{sleep, timeout},
};
use tracing::info;

use super::{WARMING, blocking, disk::Captured};
use crate::qemu::{
    cgroup::Group,
    command::{Machine, PORT_ID, Purpose, number},
    console::{Console, last_line},
    cpio,
    host::{Host, Start, Started},
    jail::order::Lifetime,
    memfd, pidfd,
    qmp::Qmp,
    record::Folder,
};

/// How long a boot may take on a busy host without hardware help.
const BOOT: Duration = Duration::from_secs(240);
/// How long warming may take, and the guest API to answer.
const WARM: Duration = Duration::from_secs(120);
/// How long the link must have nothing to say before the capture.
const QUIET: Duration = Duration::from_millis(200);
/// How long QEMU may take for one step.
const STEP: Duration = Duration::from_secs(30);
/// How long removing an attempt may take.
const REMOVAL: Duration = Duration::from_secs(10);
/// The session that a template is captured in. No sandbox uses this epoch.
const EPOCH: u32 = u32::MAX;
/// Room for device state, which is a few hundred KiB.
const MAX_STATE_BYTES: u64 = 16 * 1024 * 1024;

/// Boots templates.
#[derive(Debug)]
pub(in crate::qemu) struct Boot<'a> {
    pub(in crate::qemu) host: &'a Arc<Host>,
    pub(in crate::qemu) tsc_khz: u64,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;
type Session<'a> = Pin<&'a mut (dyn Future<Output = std::io::Result<()>> + Send)>;

impl Boot<'_> {
    /// Boots a machine for `spec` and captures it. `scratch` is a folder of its
    /// own for the attempt.
    pub(super) async fn run(
        &self,
        key: Digest,
        spec: &SandboxSpec,
        scratch: &Path,
    ) -> Result<Captured, BackendError> {
        let begun = Instant::now();
        let attempt = Attempt {
            host: Arc::clone(self.host),
            folder: Folder::at(scratch.to_owned()),
            group: self.host.hierarchy.own_group(&format!("template-{}", &key.hex()[..16])),
            uid: OnceLock::new(),
            process: OnceLock::new(),
        };
        let attempt = blocking(move || {
            attempt.remove();
            attempt.folder.create()?;
            Ok(Arc::new(attempt))
        });
        let attempt =
            attempt.await.map_err(|source| BackendError::failed("booting a template", source))?;
        let captured = attempt.boot_and_capture(spec, self.tsc_khz).await;
        let captured = captured.map_err(|cause| {
            let explained = attempt.explain(cause);
            BackendError::failed("booting a template", explained)
        });
        let removed = tokio::task::spawn_blocking(move || drop(attempt)).await;
        removed.map_err(|source| BackendError::failed("removing the template machine", source))?;
        let boot_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        info!(template.key = %key, boot_ms, "booted a template");
        captured
    }
}

/// A machine that will become a template, or nothing. Shared with the work that
/// starts it, so that it is removed after that work, never during it.
#[derive(Debug)]
struct Attempt {
    host: Arc<Host>,
    folder: Folder,
    group: Group,
    uid: OnceLock<u32>,
    process: OnceLock<OwnedFd>,
}

impl Attempt {
    async fn boot_and_capture(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        tsc_khz: u64,
    ) -> Result<Captured, Cause> {
        let (memory, started) = self.start(spec, tsc_khz).await?;
        let process = pidfd::watch(started.handle)?;
        let mut qmp = Qmp::connect(&self.folder.qmp()).await?;
        qmp.answer("qmp_capabilities", STEP).await?;
        let pipe = UnixStream::connect(self.folder.link()).await?;
        timeout(BOOT, port_opens(&mut qmp))
            .await
            .map_err(|_| format!("the guest did not answer within {} seconds", BOOT.as_secs()))??;

        let (link, session) = link::establish(Box::new(pipe), link::Pipe::Used, EPOCH).await?;
        let mut session = std::pin::pin!(session);
        during(session.as_mut(), warm(&link)).await?;
        // The session stays connected, but nobody moves it after this.
        let quiet = async {
            sleep(QUIET).await;
            Ok(())
        };
        during(session.as_mut(), quiet).await?;
        let state = capture(&mut qmp).await?;
        // QEMU may end before it answers.
        qmp.execute("quit", json!({}), STEP).await.ok();
        timeout(STEP, process.readable()).await.map_err(|_| "QEMU did not end")??.retain_ready();
        pidfd::take_status(process.get_ref());
        Ok(Captured { memory, state, tsc_khz })
    }

    async fn start(
        self: &Arc<Self>,
        spec: &SandboxSpec,
        tsc_khz: u64,
    ) -> Result<(OwnedFd, Started), Cause> {
        let attempt = Arc::clone(self);
        let (image, resources) = (spec.image.clone(), spec.resources);
        let start = move || -> Result<(OwnedFd, Started), Cause> {
            let host = &attempt.host;
            let claim = host.uids.claim()?;
            attempt.uid.get_or_init(|| claim.uid);
            let bytes = u64::from(resources.memory_mib) * 1024 * 1024;
            let memory = memfd::memory("coldframe-template", bytes)?;
            let modules = std::fs::read(&image.modules)?;
            let init = cpio::with_init(&host.guest);
            let initrd = memfd::sealed("coldframe-initrd", &[&modules, &init])?;
            let kernel = memfd::sealed("coldframe-kernel", &[&std::fs::read(&image.kernel)?])?;
            let rootfs = File::open(&image.rootfs)?;
            let purpose = Purpose::Template { tsc_khz };
            let started = host.start(Start {
                folder: &attempt.folder,
                group: &attempt.group,
                machine: Machine { accelerator: host.accelerator, resources, purpose },
                claim,
                lifetime: Lifetime::EndsWithCaller,
                max_file_bytes: MAX_STATE_BYTES,
                descriptors: vec![
                    (rootfs.as_fd(), number::ROOTFS),
                    (kernel.as_fd(), number::KERNEL),
                    (memory.as_fd(), number::MEMORY),
                    (initrd.as_fd(), number::INITRD),
                ],
            })?;
            let process = started.handle.try_clone()?;
            attempt.process.get_or_init(|| process);
            Ok((memory, started))
        };
        tokio::task::spawn_blocking(start).await?
    }

    /// Adds the machine's own last words.
    fn explain(&self, cause: Cause) -> Cause {
        let console = Console::load(&self.folder.console());
        let complaint = std::fs::read(self.folder.complaints()).unwrap_or_default();
        match console.last_words().or_else(|| last_line(&complaint)) {
            Some(line) => format!("{}; the last that was heard: \"{line}\"", chain(&*cause)).into(),
            None => cause,
        }
    }

    fn remove(&self) {
        let deadline = Instant::now() + REMOVAL;
        let left = self.group.kill(deadline);
        if let Some(process) = self.process.get()
            && pidfd::wait(process, deadline.saturating_duration_since(Instant::now())).is_ok()
        {
            pidfd::take_status(process);
        }
        let removed = self.group.remove(deadline).and_then(|()| self.folder.remove());
        if !left.is_empty() || removed.is_err() {
            // The next attempt of the same template tries again.
            tracing::warn!(processes = ?left, "a template machine could not be removed");
        }
        if let Some(uid) = self.uid.get() {
            self.host.uids.release(*uid);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A cause with its causes, in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Waits until the guest's init has opened its end of the link.
async fn port_opens(qmp: &mut Qmp) -> Result<(), Cause> {
    loop {
        let event = qmp.event().await?;
        let open = event.data.get("open").and_then(|open| open.as_bool());
        match event.name.as_str() {
            "VSERPORT_CHANGE" if event.text("id") == PORT_ID && open == Some(true) => {
                return Ok(());
            }
            "SHUTDOWN" => return Err("the machine stopped before its guest answered".into()),
            _ => {}
        }
    }
}

/// Does `work` while the session is moved. The session's end ends the work.
async fn during<T>(
    session: Session<'_>,
    work: impl Future<Output = Result<T, Cause>>,
) -> Result<T, Cause> {
    tokio::select! {
        ended = session => Err(match ended {
            Ok(()) => "the guest closed the link".into(),
            Err(error) => error.into(),
        }),
        result = work => result,
    }
}

/// Brings into memory what every sandbox will use.
async fn warm(link: &Link) -> Result<(), Cause> {
    let commands = WARMING
        .iter()
        .map(|command| command.iter().map(|word| (*word).to_owned()).collect())
        .collect();
    link.control().await?.call(&Request::Warm { commands }, WARM).await?;
    let answers = async {
        while !health(link).await.unwrap_or(false) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WARM, answers).await.map_err(|_| "the guest API did not answer")?;
    Ok(())
}

/// Whether the guest API is up.
async fn health(link: &Link) -> std::io::Result<bool> {
    let mut stream = link.open(Preface::GuestApi).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: guest\r\nconnection: close\r\n\r\n").await?;
    stream.flush().await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(head.starts_with(b"HTTP/1.1 2"))
}

/// Takes the state of the devices, which stops the machine.
async fn capture(qmp: &mut Qmp) -> Result<OwnedFd, Cause> {
    let state = memfd::memory("coldframe-state", 0)?;
    // Not stopped before: what is captured running runs at once in a clone.
    qmp.execute("migrate-set-capabilities", capabilities(), STEP).await?;
    qmp.send_with("getfd", json!({ "fdname": "state" }), state.as_fd()).await?;
    qmp.answer("getfd", STEP).await?;
    qmp.execute("migrate", json!({ "uri": "fd:state" }), STEP).await?;
    timeout(STEP, migrated(qmp)).await.map_err(|_| "writing the device state took too long")??;
    Ok(state)
}

/// Memory stays where it is, and the end is announced.
pub(in crate::qemu) fn capabilities() -> serde_json::Value {
    json!({ "capabilities": [
        { "capability": "x-ignore-shared", "state": true },
        { "capability": "events", "state": true },
    ]})
}

/// Waits until device state was written or read.
pub(in crate::qemu) async fn migrated(qmp: &mut Qmp) -> Result<(), Cause> {
    loop {
        let event = qmp.event().await?;
        if event.name == "MIGRATION" {
            match event.text("status") {
                "completed" => return Ok(()),
                "failed" => return Err("QEMU could not move the device state".into()),
                _ => {}
            }
        }
    }
}
