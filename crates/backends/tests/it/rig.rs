//! What the tests need: a backend on a state folder, and the spec to run.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use backends::qemu::{Lifetime, QemuBackend, QemuConfig};
use domain::{
    id::SandboxId,
    image::{Image, Manifest, digest::Digest},
    size::{Resources, SizeClass},
};
use guest_protocol::{
    client::GuestClient,
    control::{Identity, Newcomer, Request, Response},
    process::{Event, Output, ProcessConfig, StartRequest},
};
use sandbox::{
    backend::Backend,
    link,
    spec::{SandboxSpec, Source},
};
use tokio::time::timeout;

/// Far longer than anything takes.
pub(crate) const BOUND: Duration = Duration::from_secs(240);

/// A place to run machines. Tests that look at the whole place have one of
/// their own; templates are shared by all.
pub(crate) struct Rig {
    pub(crate) backend: Arc<QemuBackend>,
    pub(crate) spec: SandboxSpec,
    pub(crate) config: QemuConfig,
}

impl Rig {
    /// The rig, or nothing when this host cannot run machines.
    pub(crate) async fn open(name: &str, lifetime: Lifetime) -> Option<Self> {
        let rig = match Self::build(name, lifetime) {
            Ok(rig) => rig,
            Err(reason) => {
                println!("not run: {reason}");
                return None;
            }
        };
        // What a failed run of the same test left.
        for id in rig.backend.list().await.unwrap() {
            rig.backend.destroy(&id).await.unwrap();
        }
        Some(rig)
    }

    /// The rig of a place that another process uses, with what is in it.
    pub(crate) fn again(name: &str, lifetime: Lifetime) -> Option<Self> {
        Self::build(name, lifetime).ok()
    }

    fn build(name: &str, lifetime: Lifetime) -> Result<Self, String> {
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
        let images = std::env::var_os("COLDFRAME_TEST_IMAGES")
            .map_or_else(|| Path::new(&home).join(".local/share/coldframe/images"), PathBuf::from);
        let image = image(&images.join("base")).map_err(|error| {
            format!("no image in {} ({error}); set COLDFRAME_TEST_IMAGES", images.display())
        })?;
        let guestd = std::env::var("COLDFRAME_TEST_GUESTD")
            .map_err(|_| "COLDFRAME_TEST_GUESTD does not name the guest program".to_owned())?;
        let guestd = std::fs::read(&guestd).map_err(|error| format!("{guestd}: {error}"))?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("qemu");
        let config = QemuConfig {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            state_dir: folder.join("state"),
            run_dir: folder.join(name),
            snapshot_dir: folder.join(format!("{name}.snapshots")),
            snapshot_memory: None,
            jailer: env!("CARGO_BIN_EXE_coldframe-jail").into(),
            guestd: guestd.into(),
            uid_base: 2_000_000_000,
            lifetime,
        };
        let backend = QemuBackend::open(config.clone()).map_err(|error| error.to_string())?;
        let spec = SandboxSpec {
            image,
            resources: Resources::of(SizeClass::Small),
            source: Source::Template,
            disks: Vec::new(),
        };
        Ok(Self { backend: Arc::new(backend), spec, config })
    }

    /// The same place, as the next server finds it.
    pub(crate) fn reopen(&self) -> Arc<QemuBackend> {
        Arc::new(QemuBackend::open(self.config.clone()).unwrap())
    }

    /// The host's number of a sandbox's first process.
    pub(crate) fn pid(&self, id: &SandboxId) -> i32 {
        let record = self.config.run_dir.join(id.as_str()).join("machine.json");
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        i32::try_from(record["process"]["pid"].as_i64().unwrap()).unwrap()
    }
}

fn image(folder: &Path) -> std::io::Result<Image> {
    let text = std::fs::read(folder.join("manifest.json"))?;
    let manifest: Manifest = serde_json::from_slice(&text)?;
    Ok(Image {
        name: manifest.name.clone(),
        digest: Digest::of(&text),
        kernel: folder.join("vmlinuz"),
        modules: folder.join("modules.cpio"),
        rootfs: folder.join("rootfs.erofs"),
        manifest,
    })
}

/// Gives a sandbox its identity, runs a shell command in it as a user, and
/// returns what it printed.
pub(crate) async fn run(
    backend: &dyn Backend,
    id: &SandboxId,
    epoch: u32,
    user: &str,
    command: &str,
) -> anyhow::Result<String> {
    let identity = Identity {
        sandbox: id.to_string(),
        hostname: "sandbox".into(),
        machine_id: [1; 16],
        unix_nanos: now()?,
        entropy: [epoch.to_le_bytes()[0]; 32],
        environment: Vec::new(),
        accounts: vec![1000, 0],
    };
    let identify = Request::Identify(Box::new(identity));
    Box::pin(greet_and_run(backend, id, epoch, identify, user, command)).await
}

/// The same in a machine that was stopped, after telling it the time.
pub(crate) async fn wake_and_run(
    backend: &dyn Backend,
    id: &SandboxId,
    epoch: u32,
    user: &str,
    command: &str,
) -> anyhow::Result<String> {
    let wake = Request::Wake {
        unix_nanos: now()?,
        entropy: [epoch.to_le_bytes()[0].wrapping_add(100); 32],
    };
    Box::pin(greet_and_run(backend, id, epoch, wake, user, command)).await
}

/// The same in a copy, which becomes another sandbox first.
pub(crate) async fn become_and_run(
    backend: &dyn Backend,
    id: &SandboxId,
    epoch: u32,
    user: &str,
    command: &str,
) -> anyhow::Result<String> {
    let newcomer = Newcomer {
        sandbox: id.to_string(),
        hostname: format!("copy-{epoch}"),
        machine_id: [2; 16],
        unix_nanos: now()?,
        entropy: [epoch.to_le_bytes()[0].wrapping_add(200); 32],
        environment: Vec::new(),
    };
    let r#become = Request::Become(Box::new(newcomer));
    Box::pin(greet_and_run(backend, id, epoch, r#become, user, command)).await
}

fn now() -> anyhow::Result<u64> {
    Ok(u64::try_from(UNIX_EPOCH.elapsed()?.as_nanos())?)
}

async fn greet_and_run(
    backend: &dyn Backend,
    id: &SandboxId,
    epoch: u32,
    greeting: Request,
    user: &str,
    command: &str,
) -> anyhow::Result<String> {
    let pipe = backend.connect(id).await?;
    let (link, living) = timeout(BOUND, link::establish(pipe, link::Pipe::Used, epoch)).await??;
    let talk = async {
        let answer = link.control().await?.call(&greeting, BOUND).await?;
        anyhow::ensure!(answer == Response::Done, "{answer:?}");
        let guest = GuestClient::new(link);
        let process = ProcessConfig {
            cmd: "/bin/sh".into(),
            args: vec!["-c".into(), command.into()],
            ..Default::default()
        };
        let start = StartRequest { process, stdin: Some(false), ..Default::default() };
        let mut stream = guest.start(&start, user, None).await?;
        let mut printed = Vec::new();
        loop {
            match stream.next().await? {
                Event::Data(Output::Stdout(bytes) | Output::Stderr(bytes)) => {
                    printed.extend_from_slice(&bytes.0);
                }
                Event::End(_) => return Ok(String::from_utf8_lossy(&printed).into_owned()),
                _ => {}
            }
        }
    };
    tokio::select! {
        printed = timeout(BOUND, talk) => printed?,
        ended = living => Err(anyhow::anyhow!("the session ended: {ended:?}")),
    }
}
