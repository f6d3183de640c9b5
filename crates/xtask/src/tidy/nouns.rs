//! One noun has one file name at every layer, so that a newcomer can guess it.
//!
//! A noun counts once `control` has use cases for it. From then on each layer
//! has its file, or the root `Cargo.toml` says under `missing-nouns` why not.

use super::{Problem, rules::Rules};
use crate::tree::Tree;

/// Everything the product speaks of.
const NOUNS: [&str; 19] = [
    "apps",
    "approvals",
    "audit",
    "images",
    "knowledge",
    "library",
    "policies",
    "previews",
    "runs",
    "sandboxes",
    "sessions",
    "skills",
    "snapshots",
    "tasks",
    "templates",
    "tokens",
    "upstreams",
    "users",
    "volumes",
];

/// Where the use cases of a noun are.
const DECIDES: &str = "crates/control/src/{}.rs";

/// Where else it has a file.
const LAYERS: [&str; 5] = [
    "crates/store/src/{}.rs",
    "crates/api/src/{}.rs",
    "crates/server/src/rest/{}.rs",
    "crates/server/tests/it/{}.rs",
    "docs/guide/{}.md",
];

pub(super) fn check(tree: &Tree, rules: &Rules) -> Vec<Problem> {
    let exists = |path: &str| tree.has(path);
    let mut problems = missing(exists, |path| rules.missing_nouns.contains_key(path));
    for path in rules.missing_nouns.keys().filter(|path| tree.has(path)) {
        let what = format!("missing-nouns excuses {path}, which exists");
        problems.push(Problem::file("Cargo.toml", what));
    }
    problems
}

fn missing(exists: impl Fn(&str) -> bool, excused: impl Fn(&str) -> bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    for noun in NOUNS.iter().filter(|noun| exists(&DECIDES.replace("{}", noun))) {
        for layer in LAYERS {
            let path = layer.replace("{}", noun);
            if !exists(&path) && !excused(&path) {
                let what = format!("is missing, though control has {noun}");
                problems.push(Problem::file(&path, what));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_of_control_is_found_at_every_layer() {
        let exists = |path: &str| path == "crates/control/src/volumes.rs" || path.ends_with(".md");
        let found = missing(exists, |path| path == "crates/api/src/volumes.rs");
        let paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "crates/store/src/volumes.rs",
                "crates/server/src/rest/volumes.rs",
                "crates/server/tests/it/volumes.rs"
            ]
        );
    }

    #[test]
    fn a_noun_without_use_cases_is_not_looked_for() {
        assert_eq!(missing(|path| !path.starts_with("crates/control"), |_| false), []);
    }
}
