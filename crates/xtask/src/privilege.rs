//! Doing as root what only root can do.
//!
//! Building an image and starting sandboxes need root. Whoever is not root gets
//! there through `sudo`, which may ask for a password on the terminal.

use std::{ffi::OsStr, process::Command};

use anyhow::ensure;

use crate::workspace;

/// What a program started through `sudo` keeps of our environment.
const KEPT: &str = "--preserve-env=HOME,PATH,CARGO,CARGO_TARGET_DIR,CARGO_MANIFEST_DIR,CI";

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that runs `program` as root.
pub(crate) fn command(program: impl AsRef<OsStr>) -> anyhow::Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    ensure!(
        workspace::is_installed("sudo"),
        "this needs root, and sudo is not installed; run the same command as root"
    );
    let mut command = Command::new("sudo");
    command.arg(KEPT).arg(program);
    Ok(command)
}
