//! The files of the checkout, as git sees them.
//!
//! What git ignores does not exist here, and what is not committed yet does: a
//! check fails before the commit and not after it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

/// One file of the checkout.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Seen from the root, with `/`.
    pub(crate) path: String,
    /// Bytes that are no text are replaced.
    pub(crate) text: String,
    pub(crate) is_text: bool,
}

impl SourceFile {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), is_text: true }
    }

    /// The name without folders and without `.rs`.
    pub(crate) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.strip_suffix(".rs").unwrap_or(name)
    }

    /// Whether it holds tests only.
    pub(crate) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }
}

/// All files of the checkout, ordered by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<SourceFile>,
}

impl Tree {
    /// Reads every file that is committed or could be.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut git = Command::new("git");
        // A clone made by another user is still ours to read.
        git.args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others"]);
        let listing = git.arg("--exclude-standard").current_dir(root).output();
        let listing = listing.context("git could not be started; is it installed?")?;
        ensure!(
            listing.status.success(),
            "git could not list the files of {}: {}",
            root.display(),
            String::from_utf8_lossy(&listing.stderr).trim()
        );
        let names = String::from_utf8_lossy(&listing.stdout).into_owned();
        let mut paths: Vec<_> = names.split_terminator('\0').collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            // A file that was removed and is still in the index is skipped.
            let Ok(bytes) = fs::read(root.join(path)) else { continue };
            files.push(SourceFile {
                path: path.to_owned(),
                is_text: !bytes.contains(&0),
                text: String::from_utf8_lossy(&bytes).into_owned(),
            });
        }
        Ok(Self { root: root.to_owned(), files })
    }

    /// The Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// Whether a file of this path exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }
}
