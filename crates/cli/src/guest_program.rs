//! The program that runs inside every sandbox as its first process.
//!
//! A release carries it; a development build may take it from the file `guestd`
//! beside the executable. It is handed to the machine as bytes and is in no
//! image, so an image never has to be rebuilt for it.

use std::{borrow::Cow, path::PathBuf};

use crate::error::{Failure, Outcome};

static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guestd"));

/// Where the guest's program comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It is part of this executable.
    Embedded,
    /// It lies beside it.
    Beside(PathBuf),
    /// There is none.
    Missing(PathBuf),
}

/// Finds it.
pub(crate) fn origin() -> Origin {
    if !EMBEDDED.is_empty() {
        return Origin::Embedded;
    }
    let executable = std::env::current_exe().unwrap_or_default();
    let beside = executable.with_file_name("guestd");
    if beside.is_file() { Origin::Beside(beside) } else { Origin::Missing(beside) }
}

/// Its bytes.
pub(crate) fn bytes() -> Outcome<Cow<'static, [u8]>> {
    match origin() {
        Origin::Embedded => Ok(Cow::Borrowed(EMBEDDED)),
        Origin::Beside(path) => Ok(Cow::Owned(std::fs::read(path)?)),
        Origin::Missing(path) => Err(Failure::refused("this build carries no guest program")
            .hint(format!("build with `cargo xtask build`, or put guestd at {}", path.display()))),
    }
}
