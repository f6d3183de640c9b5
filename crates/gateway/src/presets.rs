//! Lists of destinations that have a name (S94).
//!
//! They are a file of the repository with a version. Registries of packages are
//! not in it: an image says which its own package clients use.

use std::{collections::BTreeMap, sync::LazyLock};

use domain::allow::{Entry, InvalidEntry, MAX_ENTRIES};
use serde::Deserialize;

/// What a list item that names a preset begins with.
pub const PREFIX: &str = "preset:";

/// The list of a sandbox in `restricted` that asked for none (S19).
pub const DEFAULT: [&str; 3] = ["preset:code-hosting", "preset:model-apis", "preset:packages"];

/// Why a list cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidList {
    /// There is no such preset.
    #[error("there is no preset {0:?}; there are {known}", known = names())]
    Preset(String),
    /// An item is no entry.
    #[error("{item:?}: {reason}")]
    Entry {
        /// The item.
        item: String,
        /// What is wrong with it.
        reason: InvalidEntry,
    },
    /// Too many.
    #[error("at most {MAX_ENTRIES} entries, those of presets included")]
    Long,
}

#[derive(Debug, Deserialize)]
struct Presets {
    version: u32,
    #[serde(flatten)]
    lists: BTreeMap<String, Preset>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preset {
    /// For people who read the file.
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    entries: Vec<Entry>,
    /// Kinds of package clients; what they use is a fact of the image.
    #[serde(default)]
    clients: Vec<String>,
}

static PRESETS: LazyLock<Presets> = LazyLock::new(|| {
    let text = include_str!("../../../presets/egress.toml");
    toml::from_str(text).expect("the file is part of this program, and a test reads it")
});

/// The version of the presets.
pub fn version() -> u32 {
    PRESETS.version
}

/// Writes a list out: every preset becomes its entries, repeats are left out.
/// `registries` are those of the image.
pub fn expand(list: &[String], registries: &[Entry]) -> Result<Vec<Entry>, InvalidList> {
    let mut entries = Vec::new();
    for item in list {
        match item.strip_prefix(PREFIX) {
            None => {
                let refuse = |reason| InvalidList::Entry { item: item.clone(), reason };
                entries.push(item.parse().map_err(refuse)?);
            }
            Some(name) => {
                let unknown = || InvalidList::Preset(name.to_owned());
                let preset = PRESETS.lists.get(name).ok_or_else(unknown)?;
                entries.extend_from_slice(&preset.entries);
                if !preset.clients.is_empty() {
                    entries.extend_from_slice(registries);
                }
            }
        }
        if entries.len() > MAX_ENTRIES {
            return Err(InvalidList::Long);
        }
    }
    entries.sort();
    entries.dedup();
    Ok(entries)
}

fn names() -> String {
    let names: Vec<_> = PRESETS.lists.keys().map(String::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    /// S19, S94: the default list, with what the image adds.
    #[test]
    fn the_default_list_is_curated() {
        assert!(version() >= 1);
        let registry: Entry = "registry.test".parse().unwrap();
        let entries = expand(&list(&DEFAULT), std::slice::from_ref(&registry)).unwrap();
        for host in ["github.com", "api.anthropic.com", "registry.test"] {
            assert!(entries.contains(&host.parse().unwrap()), "{host}");
        }
        // Without a registry in the image there is none in the list.
        let none = expand(&list(&["preset:packages"]), &[]).unwrap();
        assert!(none.is_empty());
        // No preset opens a wildcard or plain HTTP.
        for preset in PRESETS.lists.values() {
            for entry in &preset.entries {
                let text = entry.to_string();
                assert!(!text.contains('*') && !text.contains("://"), "{text}");
            }
        }
    }

    /// S20: a list of one's own takes the place of the default.
    #[test]
    fn a_list_is_what_it_says() {
        let entries = expand(&list(&["b.test", "A.test", "a.test."]), &[]).unwrap();
        assert_eq!(entries, ["a.test", "b.test"].map(|entry| entry.parse().unwrap()));
        assert_eq!(expand(&[], &[]), Ok(Vec::new()));
        let unknown = expand(&list(&["preset:all"]), &[]).unwrap_err().to_string();
        assert!(unknown.contains("code-hosting, model-apis, packages"), "{unknown}");
        let wrong = expand(&list(&["*.com"]), &[]).unwrap_err();
        assert!(matches!(wrong, InvalidList::Entry { .. }));
        let many: Vec<_> = (0..=MAX_ENTRIES).map(|nth| format!("h{nth}.test")).collect();
        assert_eq!(expand(&many, &[]), Err(InvalidList::Long));
    }
}
