//! Where things are: the checkout, the user's caches, and the cargo that runs us.
//!
//! Everything that may be thrown away lies in `~/.cache/coldframe`, outside the
//! checkout, so that a fresh clone on a machine that has built before is quick.
//! Nothing there is needed for a correct result.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

/// Variables that `cargo run` sets for us and a cargo that we start must not
/// inherit: build scripts would see them change and run again.
const OF_THIS_RUN: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.ancestors().nth(2).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// What may be thrown away: downloads, build results, times of earlier runs.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    Ok(user_folder("XDG_CACHE_HOME", ".cache")?.join("coldframe"))
}

/// What the user keeps: images, the key that signs them, the demo's server.
pub(crate) fn data() -> anyhow::Result<PathBuf> {
    Ok(user_folder("XDG_DATA_HOME", ".local/share")?.join("coldframe"))
}

/// The folder of images that `cargo xtask image build` fills.
pub(crate) fn images() -> anyhow::Result<PathBuf> {
    Ok(data()?.join("images"))
}

/// Where cargo puts what it builds for the tasks.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    match env::var_os("CARGO_TARGET_DIR").filter(|path| !path.is_empty()) {
        Some(path) => Ok(root().join(path)),
        None => Ok(cache()?.join("target")),
    }
}

/// The cargo that started us, run in the root of the checkout.
pub(crate) fn cargo() -> anyhow::Result<Command> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(root()).env("CARGO_TARGET_DIR", target()?);
    for (name, _) in env::vars_os() {
        if OF_THIS_RUN.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
    Ok(cargo)
}

/// Whether a program of this name can be started.
pub(crate) fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

/// Where a program is: in the search path, or where Debian keeps what only root
/// is expected to start.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// A folder of the user's own, by the convention of the XDG base directories.
fn user_folder(variable: &str, default: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    Ok(PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(default))
}
