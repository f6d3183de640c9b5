//! The tables under `[workspace.metadata]` of the root `Cargo.toml`.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use serde::Deserialize;

/// What the checks compare the tree with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Rules {
    /// Which of our crates each crate may use.
    pub(super) layers: BTreeMap<String, Vec<String>>,
    /// The crates at which a large dependency may be named.
    pub(super) sole_users: BTreeMap<String, Vec<String>>,
    /// Files that may be long, each with the reason.
    #[serde(default)]
    pub(super) long_files: BTreeMap<String, String>,
    /// Files that a noun does not have, each with the reason.
    #[serde(default)]
    pub(super) missing_nouns: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    workspace: Workspace,
}

#[derive(Debug, Deserialize)]
struct Workspace {
    metadata: Rules,
}

/// Reads the tables of the checkout at `root`.
pub(super) fn read(root: &Path) -> anyhow::Result<Rules> {
    let text = fs::read_to_string(root.join("Cargo.toml"))?;
    let manifest: Manifest = toml::from_str(&text).context("in the root Cargo.toml")?;
    Ok(manifest.workspace.metadata)
}
