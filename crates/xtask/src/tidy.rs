//! `cargo xtask tidy`: what reviewers would otherwise have to say again.
//!
//! Each check is a function from the files of the checkout, and where needed
//! from facts about this machine, to a list of problems. Nothing here changes a
//! file, and nothing depends on what was committed when.
//!
//! The limits and the exceptions from them, each with its reason, stand in the
//! root `Cargo.toml` under `[workspace.metadata]`.

use std::fmt;

use anyhow::bail;

use crate::{tree::Tree, workspace};

mod documents;
mod layers;
mod machine;
mod nouns;
mod proofs;
mod rules;
mod sources;

/// Something that has to change before the tree is tidy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    path: String,
    /// Counted from one; none where the whole file is meant.
    line: Option<usize>,
    what: String,
}

impl Problem {
    fn file(path: &str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: None, what: what.into() }
    }

    fn line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: Some(line), what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.what),
            None => write!(f, "{}: {}", self.path, self.what),
        }
    }
}

/// Runs `cargo xtask tidy`.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = workspace::root();
    let tree = Tree::read(&root)?;
    let rules = rules::read(&root)?;
    let problems = [
        layers::check(&rules)?,
        sources::check(&tree, &rules),
        nouns::check(&tree, &rules),
        proofs::check(&tree)?,
        documents::check(&tree),
        machine::check(&tree)?,
    ]
    .concat();
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        count => bail!("{count} problems, listed above; each says what to change"),
    }
}
