//! `images/base.toml` as a type: what an image is declared to be.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, bail, ensure};
use domain::image::{
    ImageName,
    facts::{Facts, User},
};
use serde::Deserialize;

/// The declaration of one image.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    pub name: ImageName,
    pub release: String,
    pub architecture: String,
    /// The account that processes run as unless asked otherwise.
    pub user: String,
    pub packages: Vec<String>,
    /// Paths that no package unpacks, and exceptions from that.
    pub exclude: Vec<String>,
    pub include: Vec<String>,
    /// Every file that keeps a setuid or setgid bit.
    pub setuid: BTreeSet<String>,
    pub kernel: Kernel,
    pub environment: BTreeMap<String, String>,
    pub users: Vec<User>,
    pub directories: Vec<Directory>,
    pub files: Vec<File>,
    pub facts: DeclaredFacts,
}

/// Which kernel, and which of its modules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernel {
    /// A package that depends on the kernel to use.
    pub package: String,
    pub modules: Vec<String>,
}

/// A directory made after the packages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Directory {
    pub path: String,
    pub owner: String,
    pub mode: Mode,
}

/// A file of root's written after the packages, over what they brought.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub path: String,
    #[serde(default)]
    pub mode: Mode,
    /// The content; a line break after the opening quotes is not part of it.
    pub content: String,
}

/// Permission bits, written in octal.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Mode(pub u32);

/// The facts that follow from nothing else in the recipe.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeclaredFacts {
    pub listening: BTreeSet<String>,
    pub interfaces: BTreeSet<String>,
    pub user_xattrs: BTreeSet<String>,
    pub tools: BTreeMap<String, String>,
    pub checks: BTreeMap<String, String>,
}

impl Default for Mode {
    fn default() -> Self {
        Self(0o644)
    }
}

impl TryFrom<String> for Mode {
    type Error = anyhow::Error;

    fn try_from(raw: String) -> anyhow::Result<Self> {
        let bits = u32::from_str_radix(&raw, 8).ok().filter(|bits| *bits <= 0o1777);
        Ok(Self(bits.with_context(|| format!("{raw:?} is not a mode such as \"0644\""))?))
    }
}

impl Recipe {
    /// Parses a recipe and checks what its parts say about each other.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let recipe: Self = toml::from_str(text)?;
        let paths = recipe.files.iter().map(|file| &file.path);
        for path in paths.chain(recipe.directories.iter().map(|directory| &directory.path)) {
            ensure!(
                path.starts_with('/') && !path.contains("/.."),
                "{path:?} is not an absolute path"
            );
        }
        for name in recipe.directories.iter().map(|it| &it.owner).chain([&recipe.user]) {
            recipe.user(name)?;
        }
        Ok(recipe)
    }

    /// The declared account called `name`.
    pub(crate) fn user(&self, name: &str) -> anyhow::Result<&User> {
        match self.users.iter().find(|user| user.name == name) {
            Some(user) => Ok(user),
            None => bail!("{name:?} is not among the declared users"),
        }
    }

    /// Everything that must be true inside, for the manifest.
    pub(crate) fn facts(&self, kernel_release: &str) -> Facts {
        let declared = &self.facts;
        let mut checks = declared.checks.clone();
        let kernel = format!("test \"$(uname -r)\" = '{kernel_release}'");
        checks.insert(format!("the kernel is {kernel_release}"), kernel);
        let directories = self.directories.iter().map(|it| (it.path.clone(), it.owner.clone()));
        let homes = self.users.iter().filter(|user| has_home(user));
        let homes = homes.map(|user| (user.home.clone(), user.name.clone()));
        Facts {
            users: self.users.clone(),
            setuid: self.setuid.clone(),
            listening: declared.listening.clone(),
            interfaces: declared.interfaces.clone(),
            user_xattrs: declared.user_xattrs.clone(),
            owned: directories.chain(homes).collect(),
            tools: declared.tools.clone(),
            checks,
        }
    }
}

/// Whether an account has a directory of its own.
pub(crate) fn has_home(user: &User) -> bool {
    Path::new(&user.home) != Path::new("/nonexistent")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = include_str!("../../../../images/base.toml");

    #[test]
    fn the_base_image_is_declared_soundly() {
        let recipe = Recipe::parse(BASE).expect("images/base.toml parses");
        assert_eq!(recipe.user("user").map(|user| user.id).ok(), Some(1000));
        let owned = recipe.facts("1").owned;
        assert_eq!(owned.get("/home/user").map(String::as_str), Some("user"));
    }

    #[test]
    fn an_unknown_owner_or_a_path_upwards_is_refused() {
        assert!(Recipe::parse(&BASE.replace("owner = \"user\"", "owner = \"nobody\"")).is_err());
        assert!(Recipe::parse(&BASE.replace("\"/workspace\"\nowner", "\"/../w\"\nowner")).is_err());
    }
}
