//! Cleaning up after a process that could not do so itself.

use std::{
    ffi::OsString,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
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
    pub(super) fn start(state: &Path, name: &str) -> Outcome<Self> {
        let child = Command::new("/proc/self/exe")
            .arg0("coldframe")
            .args([KEEPER.as_ref(), state.as_os_str(), name.as_ref()])
            .env_clear()
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
/// Arguments: the state folder and the name of the place.
pub(crate) fn keep(arguments: &[OsString]) -> ExitCode {
    let [state, name] = arguments else { return ExitCode::FAILURE };
    let mut nothing = [0];
    // Nothing is ever sent; this returns when the other end is closed.
    while matches!(std::io::stdin().read(&mut nothing), Ok(n_read) if n_read > 0) {}
    let state = PathBuf::from(state);
    let Some(name) = name.to_str() else { return ExitCode::FAILURE };
    match Place::take(&state, name) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(place)) => match block_on(clear(&Config::at(state), place)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(_) => ExitCode::FAILURE,
    }
}

/// Removes what processes left that are gone, their keepers included.
pub(crate) async fn sweep(config: &Config) {
    let names = Place::names(&config.state_dir).unwrap_or_default();
    for name in names {
        match Place::take(&config.state_dir, &name) {
            Ok(None) => {}
            Ok(Some(place)) => {
                if let Err(failure) = clear(config, place).await {
                    tracing::error!(name, error = failure.message, "what an earlier run left could not be removed");
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
