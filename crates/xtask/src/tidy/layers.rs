//! The layer table: which of our crates may use which, and who alone may use a
//! large dependency.
//!
//! A test may use `testkit` besides, because what only tests see builds nothing
//! that is shipped.

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{Problem, rules::Rules};
use crate::workspace;

/// What cargo says about the workspace.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// None for what is shipped, else `dev` or `build`.
    kind: Option<String>,
    /// Set for our own crates.
    path: Option<String>,
}

const TABLE: &str = "Cargo.toml";

pub(super) fn check(rules: &Rules) -> anyhow::Result<Vec<Problem>> {
    let mut cargo = workspace::cargo()?;
    cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
    let output = cargo.output().context("cargo could not be started")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(compare(&serde_json::from_slice(&output.stdout)?, rules))
}

fn compare(metadata: &Metadata, rules: &Rules) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let manifest = format!("crates/{}/Cargo.toml", package.name);
        let Some(allowed) = rules.layers.get(&package.name) else {
            problems.push(Problem::file(TABLE, format!("the layer table lacks {}", package.name)));
            continue;
        };
        for dependency in &package.dependencies {
            let Dependency { name, kind, path } = dependency;
            let is_test = kind.as_deref() == Some("dev");
            let permitted = allowed.contains(name) || (is_test && name == "testkit");
            if path.is_some() && !permitted {
                let what = format!("the layer table does not let {} use {name}", package.name);
                problems.push(Problem::file(&manifest, what));
            }
            if let Some(users) = rules.sole_users.get(name)
                && !is_test
                && !users.contains(&package.name)
            {
                let what = format!("{name} is for {} alone", users.join(" and "));
                problems.push(Problem::file(&manifest, what));
            }
        }
    }
    for name in rules.layers.keys() {
        if !metadata.packages.iter().any(|package| &package.name == name) {
            problems.push(Problem::file(
                TABLE,
                format!("the layer table names {name}, which is no crate"),
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(packages: &str, expected: &[&str]) {
        let rules: Rules = toml::from_str(
            "layers = { domain = [], store = [\"domain\"], testkit = [] }\nsole-users = { sqlx = [\"store\"] }",
        )
        .expect("valid");
        let metadata = serde_json::from_str(&format!("{{\"packages\":[{packages}]}}"));
        let found: Vec<_> = compare(&metadata.expect("valid"), &rules)
            .into_iter()
            .map(|problem| problem.what)
            .filter(|what| !what.contains("which is no crate"))
            .collect();
        assert_eq!(found, expected);
    }

    fn package(name: &str, dependency: &str, kind: &str, path: &str) -> String {
        format!(
            "{{\"name\":\"{name}\",\"dependencies\":[{{\"name\":\"{dependency}\",\"kind\":{kind},\"path\":{path}}}]}}"
        )
    }

    #[test]
    fn only_the_arrows_of_the_table_are_allowed() {
        check(&package("store", "domain", "null", "\"x\""), &[]);
        check(
            &package("domain", "store", "null", "\"x\""),
            &["the layer table does not let domain use store"],
        );
        check(&package("other", "domain", "null", "\"x\""), &["the layer table lacks other"]);
    }

    #[test]
    fn tests_may_use_testkit() {
        check(&package("store", "testkit", "\"dev\"", "\"x\""), &[]);
        check(
            &package("store", "testkit", "null", "\"x\""),
            &["the layer table does not let store use testkit"],
        );
    }

    #[test]
    fn a_large_dependency_has_one_user() {
        check(&package("store", "sqlx", "null", "null"), &[]);
        check(&package("domain", "sqlx", "null", "null"), &["sqlx is for store alone"]);
    }
}
