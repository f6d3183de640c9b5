//! The steps of `cargo xtask test`, in order.

use std::{collections::BTreeSet, process::Command, time::Duration};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{
    Binaries, Made, Outcome, Purpose, conformance, count, privilege, setup, tidy, workspace,
};

/// One step: what it is called, and the function that takes it.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) run: fn(&mut Made) -> anyhow::Result<Outcome>,
}

const fn step(name: &'static str, run: fn(&mut Made) -> anyhow::Result<Outcome>) -> Step {
    Step { name, run }
}

pub(super) const STEPS: [Step; 17] = [
    step("setup", |_| setup::install(Purpose::Test).map(|()| Outcome::passed())),
    step("fmt", |_| check("fmt", &["fmt", "--all", "--", "--check", "--files-with-diff"])),
    step("clippy", |_| {
        let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        check("clippy", &clippy)
    }),
    step("tidy", |_| tidy::run().map(|()| Outcome::passed())),
    step("conformance", |_| conformance::check(&workspace::root()).map(|()| Outcome::passed())),
    step("banned crates", |_| banned_crates()),
    step("licences", |_| licences()),
    step("documentation", |_| documentation()),
    step("guestd and coldframe", programs),
    step("unit tests", |made| cargo_test("unit tests", made, &["--workspace", "--lib", "--bins"])),
    step("crate tests", crate_tests),
    step("base image", image),
    step("real sandboxes: guest", |made| machine_test("guest", "it", made)),
    step("real sandboxes: backends", |made| machine_test("backends", "it", made)),
    step("real sandboxes: coldframe", |made| machine_test("cli", "vm", made)),
    step("Docker backend", |_| not_yet("the Docker backend does not exist yet")),
    step("console and SDKs", |_| not_yet("the console and the SDKs do not exist yet")),
];

/// What the steps are called.
pub(super) fn names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// Longer than any step takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// Tests that start virtual machines; a step each.
const MACHINE_TESTS: [(&str, &str); 3] = [("guest", "it"), ("backends", "it"), ("cli", "vm")];

/// Without it, a test that says that it does not run says so to nobody.
const SHOWN: [&str; 2] = ["--", "--show-output"];

fn not_yet(reason: &str) -> anyhow::Result<Outcome> {
    Ok(Outcome::NotRun(reason.to_owned()))
}

fn check(name: &str, arguments: &[&str]) -> anyhow::Result<Outcome> {
    let count = count::check(name, workspace::cargo()?.args(arguments), LIMIT)?;
    Ok(Outcome::Counted(count))
}

/// What `deny.toml` bans is in no graph that is built. This needs no other
/// program, unlike the licences.
fn banned_crates() -> anyhow::Result<Outcome> {
    let text = std::fs::read_to_string(workspace::root().join("deny.toml"))?;
    let banned = banned(&text)?;
    ensure!(!banned.is_empty(), "deny.toml bans nothing");
    let mut cargo = workspace::cargo()?;
    cargo.args(["tree", "--workspace", "--locked", "--edges", "normal,build,dev"]);
    let output = cargo.args(["--prefix", "none", "--format", "{p}"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout)?;
    let found = tree.lines().filter_map(|line| line.split(' ').next());
    let found: BTreeSet<_> = found.filter(|name| banned.iter().any(|ban| ban == name)).collect();
    ensure!(
        found.is_empty(),
        "{found:?} is banned; deny.toml says why, `cargo tree -i` who uses it"
    );
    Ok(Outcome::passed())
}

fn banned(deny: &str) -> anyhow::Result<Vec<String>> {
    let deny: toml::Table = deny.parse().context("in deny.toml")?;
    let bans = deny.get("bans").and_then(|bans| bans.get("deny")).and_then(toml::Value::as_array);
    let names = bans.into_iter().flatten().filter_map(|ban| ban.get("crate")?.as_str());
    Ok(names.map(str::to_owned).collect())
}

fn licences() -> anyhow::Result<Outcome> {
    if !workspace::is_installed("cargo-deny") {
        return not_yet("cargo-deny is not installed (cargo install cargo-deny)");
    }
    check("licences", &["deny", "--workspace", "check", "bans", "licenses", "sources"])
}

fn documentation() -> anyhow::Result<Outcome> {
    let mut cargo = workspace::cargo()?;
    cargo.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    // Private items are documented too, so that a link to one leads somewhere.
    cargo.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    let count = count::check("documentation", &mut cargo, LIMIT)?;
    Ok(Outcome::Counted(count))
}

fn programs(made: &mut Made) -> anyhow::Result<Outcome> {
    made.binaries().map(|_| Outcome::passed())
}

fn image(made: &mut Made) -> anyhow::Result<Outcome> {
    made.image().map(|()| Outcome::passed())
}

/// Builds the base image unless the one that is there is up to date.
pub(crate) fn build_image() -> anyhow::Result<()> {
    let task = std::env::current_exe()?;
    let status = privilege::command(task)?.args(["image", "build"]).status()?;
    ensure!(status.success(), "the image was not built; the reason stands above");
    Ok(())
}

/// A `cargo test` that goes on after a failed program.
fn cargo_test(name: &str, made: &mut Made, arguments: &[&str]) -> anyhow::Result<Outcome> {
    let mut cargo = test_command(made)?;
    Ok(Outcome::Counted(count::tests(name, cargo.args(arguments), LIMIT)?))
}

fn test_command(made: &mut Made) -> anyhow::Result<Command> {
    let Binaries { guestd, coldframe } = made.binaries()?;
    let mut cargo = workspace::cargo()?;
    cargo.args(["test", "--locked", "--no-fail-fast"]);
    cargo.env("COLDFRAME_GUESTD", guestd).env("COLDFRAME_TEST_GUESTD", guestd);
    cargo.env("COLDFRAME_TEST_BINARY", coldframe);
    Ok(cargo)
}

/// The test programs of all crates but those that start virtual machines.
fn crate_tests(made: &mut Made) -> anyhow::Result<Outcome> {
    let mut arguments = Vec::new();
    for (package, test) in test_programs()? {
        if !MACHINE_TESTS.contains(&(&package, &test)) {
            arguments.extend(["--package".to_owned(), package, "--test".to_owned(), test]);
        }
    }
    if arguments.is_empty() {
        return not_yet("no crate has any");
    }
    let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    arguments.extend(SHOWN);
    cargo_test("crate tests", made, &arguments)
}

fn machine_test(package: &str, test: &str, made: &mut Made) -> anyhow::Result<Outcome> {
    if !test_programs()?.contains(&(package.to_owned(), test.to_owned())) {
        return not_yet("there are no such tests yet");
    }
    ensure!(
        made.has_image && made.binaries.is_some(),
        "an earlier step did not make what it needs"
    );
    let mut cargo = test_command(made)?;
    cargo.args(["--package", package, "--test", test]).args(SHOWN);
    cargo.env("COLDFRAME_TEST_IMAGES", workspace::images()?);
    if !privilege::is_root() {
        // Cargo builds as the user; only the test itself becomes root.
        cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo -E");
    }
    Ok(Outcome::Counted(count::tests(test, &mut cargo, LIMIT)?))
}

/// What cargo says about the workspace.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Every test program as package and name.
fn test_programs() -> anyhow::Result<Vec<(String, String)>> {
    let mut cargo = workspace::cargo()?;
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--locked"]);
    let output = cargo.output().context("cargo could not be started")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let mut programs = Vec::new();
    for package in metadata.packages {
        let tests = package.targets.iter().filter(|target| target.kind == ["test"]);
        programs.extend(tests.map(|target| (package.name.clone(), target.name.clone())));
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_read_from_the_file_that_states_them() {
        let deny = "[bans]\ndeny = [{ crate = \"a\", reason = \"b\" }, { crate = \"c\" }]\n";
        assert_eq!(banned(deny).expect("valid"), ["a", "c"]);
        assert_eq!(banned("[bans]\n").expect("valid"), [""; 0]);
    }
}
