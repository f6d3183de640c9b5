//! Sandboxes of this process: the engine without a server.
//!
//! A [`Place`] is the private folder of one `coldframe run`. It is locked for as
//! long as that process lives, so a folder whose lock is free belongs to nobody
//! any more, and whoever finds it removes it with everything that was made for
//! it. A small process, the keeper, finds it at once: it holds the other end of
//! a pipe from us and does nothing until that closes, which it does however we
//! end. Should the keeper be killed too, the next start finds it.
//!
//! Deliberately absent: the server's database, which a local sandbox never opens.

mod keeper;
mod place;

use std::{path::Path, sync::Arc};

use backends::qemu::{OpenError, QemuBackend, QemuConfig};
use domain::time::Timestamp;
use sandbox::{backend::Backend, host::Sources, spec::SandboxSpec};

pub(crate) use backends::qemu::Lifetime;

pub(crate) use self::{
    keeper::{keep, sweep},
    place::Place,
};
use crate::{
    config::Config,
    error::{Failure, Kind, Outcome},
    guest_program,
    state::private_folder,
};

/// The command under which this program is its own keeper.
pub(crate) const KEEPER: &str = "keep";

/// Time and randomness of the operating system.
pub(crate) fn sources() -> Sources {
    Sources { clock: now, random }
}

fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

pub(crate) fn random(buffer: &mut [u8]) {
    use rand::TryRng as _;
    rand::rngs::SysRng
        .try_fill_bytes(buffer)
        .expect("the kernel's generator never fails once the system has started");
}

/// Machines need namespaces, cgroups and users of their own.
pub(crate) fn require_root(command: &str) -> Outcome<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "`coldframe {command}` needs root: each machine gets a user, namespaces and limits of its own"
    ))
    .hint(format!("run it as root or with sudo: sudo coldframe {command} …"))
    .hint("without root, use a server: `coldframe sandbox create`, then `coldframe sandbox exec`"))
}

/// Everything that decides how machines are made; those it lists are in `run`.
///
/// Reads the guest's program and nothing else.
pub(crate) fn machines(config: &Config, run: &Path, lifetime: Lifetime) -> Outcome<QemuConfig> {
    Ok(QemuConfig {
        qemu: config.qemu.clone(),
        state_dir: config.cache_dir(),
        run_dir: run.to_owned(),
        snapshot_dir: config.snapshots(),
        snapshot_memory: config.snapshot_memory(),
        // A link that the kernel keeps right, also when the file is replaced.
        jailer: "/proc/self/exe".into(),
        guestd: guest_program::bytes()?.into(),
        uid_base: config.uid_base,
        lifetime,
    })
}

/// The backend of this host.
pub(crate) fn backend(
    config: &Config,
    run: &Path,
    lifetime: Lifetime,
) -> Outcome<Arc<dyn Backend>> {
    Ok(Arc::new(open(config, run, lifetime)?))
}

/// Whether a start from `spec` would have to boot a template first.
pub(crate) async fn has_template(config: &Config, spec: &SandboxSpec) -> Outcome<bool> {
    // No machine is made, so any folder will do.
    let backend = open(config, &config.cache_dir(), Lifetime::EndsWithCaller)?;
    Ok(backend.has_template(spec).await)
}

fn open(config: &Config, run: &Path, lifetime: Lifetime) -> Outcome<QemuBackend> {
    private_folder(&config.cache_dir())?;
    QemuBackend::open(machines(config, run, lifetime)?).map_err(cannot_open)
}

fn cannot_open(error: OpenError) -> Failure {
    match error {
        OpenError::Unusable { subject, found, remedy } => {
            Failure::refused(format!("this host cannot run sandboxes: {subject}: {found}"))
                .hint(remedy)
                .hint("`coldframe doctor` checks everything")
        }
        OpenError::State(_) => {
            Failure::because(Kind::Internal, "the folder for machines cannot be used", &error)
        }
    }
}
