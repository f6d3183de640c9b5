//! `cargo xtask conformance`: each requirement and the tests that prove it.
//!
//! `docs/conformance.md` is derived, so nobody states by hand what is done. The
//! order is the order of the requirements, then of files and lines: two runs on
//! one tree give the same bytes, and `--check` fails when the file is stale.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::bail;
use clap::Args;

use crate::{
    proof,
    requirements::{self, Id, Requirements, SERIES},
    tree::Tree,
    workspace,
};

/// Where the result is, seen from the root of the checkout.
const FILE: &str = "docs/conformance.md";

/// Write down which tests prove which requirement
#[derive(Debug, Args)]
pub(crate) struct ConformanceArgs {
    /// Change nothing and fail if the file is out of date
    #[arg(long)]
    check: bool,
}

/// A test as a reader finds it again.
#[derive(Debug)]
struct Place {
    name: String,
    path: String,
}

type Places = BTreeMap<Id, Vec<Place>>;

/// Runs `cargo xtask conformance`.
pub(crate) fn run(arguments: &ConformanceArgs) -> anyhow::Result<()> {
    let root = workspace::root();
    if arguments.check { check(&root) } else { write(&root) }
}

/// Fails if the file does not say what the tests say.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let (text, _) = derive(root)?;
    if fs::read_to_string(root.join(FILE)).unwrap_or_default() != text {
        bail!("{FILE} is out of date; run: cargo xtask conformance");
    }
    Ok(())
}

fn write(root: &Path) -> anyhow::Result<()> {
    let (text, summary) = derive(root)?;
    fs::write(root.join(FILE), text)?;
    println!("{FILE}: {summary}");
    Ok(())
}

fn derive(root: &Path) -> anyhow::Result<(String, String)> {
    let requirements = requirements::read(root)?;
    let places = places(&Tree::read(root)?);
    let summary = format!(
        "{} of {} requirements are named by a test",
        requirements.keys().filter(|id| places.contains_key(id)).count(),
        requirements.len()
    );
    Ok((render(&requirements, &places, &summary), summary))
}

fn places(tree: &Tree) -> Places {
    let mut places = Places::new();
    for file in tree.rust() {
        for test in proof::tests(&file.text) {
            for id in test.ids {
                let place = Place { name: test.name.clone(), path: file.path.clone() };
                places.entry(id).or_default().push(place);
            }
        }
    }
    places
}

fn render(requirements: &Requirements, places: &Places, summary: &str) -> String {
    let mut text = format!(
        "# Conformance\n\n\
         Made by `cargo xtask conformance` from the tests; do not edit.\n\
         A test that names a requirement proves at least a part of it.\n\
         *open* means that no test names it yet.\n\n\
         {summary}.\n"
    );
    for (series, title) in SERIES {
        let rows: Vec<_> = requirements.iter().filter(|(id, _)| id.series == series).collect();
        let proved = rows.iter().filter(|(id, _)| places.contains_key(id)).count();
        text.push_str(&format!(
            "\n## {series}: {title} ({proved} of {})\n\n\
             | ID | Requirement | Proved by |\n|---|---|---|\n",
            rows.len()
        ));
        for (id, requirement) in rows {
            let proof = places.get(id).map_or_else(|| "open".to_owned(), |places| links(places));
            let requirement = requirement.replace('|', "\\|");
            text.push_str(&format!("| {id} | {requirement} | {proof} |\n"));
        }
    }
    text
}

fn links(places: &[Place]) -> String {
    let links: Vec<_> =
        places.iter().map(|Place { name, path }| format!("[`{name}`](../{path})")).collect();
    links.join("<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_without_a_test_is_open() {
        let requirements = requirements::parse("- S1: One.\n- S2: A | B.\n").expect("valid");
        let id = Id::parse("S1").expect("valid");
        let place = Place { name: "one".into(), path: "crates/a/src/a.rs".into() };
        let text = render(&requirements, &Places::from([(id, vec![place])]), "1 of 2");
        assert!(text.contains("| S1 | One. | [`one`](../crates/a/src/a.rs) |"), "{text}");
        assert!(text.contains("| S2 | A \\| B. | open |"), "{text}");
        assert!(text.contains("(1 of 2)"), "{text}");
    }
}
