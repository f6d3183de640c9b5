//! Cleaning up after a process that could not do so itself.

use std::{
    ffi::OsString,
    io::Read as _,
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitCode, Stdio},
};

use sandbox::host::{Host, NoLedger};

use super::{KEEPER, Lifetime, Place, backend, sources};
use crate::{
    commands::block_on,
    config::Config,
    error::{Outcome, chain},
};

/// A keeper under way. It begins its work when this is dropped, or when this
/// process is gone.
#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
}

impl Keeper {
    /// Starts the keeper of the place called `name`.
    pub(super) fn start(config: &Config, name: &str) -> Outcome<Self> {
        let child = Command::new("/proc/self/exe")
            .arg0("coldframe")
            .args([KEEPER, name])
            .env_clear()
            .envs(config.machine_variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What interrupts us at the terminal must not reach it.
            .process_group(0)
            .spawn()?;
        Ok(Self { child })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It finds nothing to do and ends; if not, it is not ours to wait for.
        self.child.try_wait().ok();
    }
}

/// Waits until the process that owns a place is gone and removes what is left.
/// The argument is the name of the place.
pub(crate) fn keep(arguments: &[OsString]) -> ExitCode {
    let mut nothing = [0];
    // Nothing is ever sent; this returns when the other end is closed.
    while matches!(std::io::stdin().read(&mut nothing), Ok(n_read) if n_read > 0) {}
    let cleared = || -> Outcome<()> {
        let config = Config::of_variables()?;
        let name = arguments.first().and_then(|name| name.to_str()).unwrap_or_default();
        match Place::inherit(&config.state_dir, name)? {
            Some(place) => block_on(clear(&config, place)),
            None => Ok(()),
        }
    };
    // There is nobody to tell: the next start of any command tries again.
    if cleared().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Removes what processes left that are gone, their keepers included.
pub(crate) async fn sweep(config: &Config) {
    let names = Place::names(&config.state_dir).unwrap_or_default();
    for name in names {
        match Place::take(&config.state_dir, &name) {
            Ok(None) => {}
            Ok(Some(place)) => {
                if let Err(failure) = clear(config, place).await {
                    tracing::error!(
                        name,
                        error = failure.message,
                        "what an earlier run left could not be removed"
                    );
                }
            }
            Err(error) => {
                let error = chain(&error);
                tracing::error!(name, error, "what an earlier run left could not be looked at");
            }
        }
    }
}

async fn clear(config: &Config, place: Place) -> Outcome<()> {
    if place.path().exists() {
        let backend = backend(config, place.path(), Lifetime::EndsWithCaller)?;
        let host = Host::new(backend, std::sync::Arc::new(NoLedger), sources());
        host.remove_unknown(&[]).await?;
    }
    place.remove()
}
