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

use std::sync::Arc;

use domain::time::Timestamp;
use sandbox::{backend::Backend, host::Sources};

pub(crate) use self::{
    keeper::{keep, sweep},
    place::Place,
};
use crate::error::{Failure, Outcome};

/// The command under which this program is its own keeper.
pub(crate) const KEEPER: &str = "keep";

/// Time and randomness of the operating system.
pub(crate) fn sources() -> Sources {
    Sources { clock: now, random }
}

fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

fn random(buffer: &mut [u8]) {
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

/// Whether machines may outlive this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// They run on, to be taken over by the next server.
    Outlives,
    /// They end with this process.
    EndsWithCaller,
}

pub(crate) fn backend(_: &crate::config::Config, _: &std::path::Path, _: Lifetime) -> Outcome<Arc<dyn Backend>> {
    let _ = crate::guest_program::bytes()?;
    Err(Failure::refused("not yet"))
}
