//! Nothing in the tree names this machine or a package registry.
//!
//! A tree that names the registry of one site does not build at another, and a
//! path of one machine is wrong on every other. Which names those are is asked
//! of the clients installed here, so that none of them has to be written down:
//! the configuration of apt, pip, npm and cargo, and the defaults that the
//! clients themselves know.
//!
//! `Cargo.lock` is exempt from the first rule, because cargo writes the source
//! of each package into it.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::Problem;
use crate::{
    tree::{SourceFile, Tree},
    workspace,
};

/// Asks pip for the index that it uses unless told otherwise.
const PIP_DEFAULTS: &str = "from pip._internal.models.index import PyPI; print(PyPI.url, 'https://' + PyPI.file_storage_domain)";

/// Home folders that exist inside every sandbox too, and thus name no machine.
const GUEST_HOMES: [&str; 2] = ["/root", "/home/user"];

/// Shorter host names are words.
const SHORTEST_HOSTNAME: usize = 6;

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Problem>> {
    let hosts = registry_hosts();
    let names = machine_names(&tree.root)?;
    let mut problems = Vec::new();
    for file in &tree.files {
        if file.path != "Cargo.lock" {
            problems.extend(naming(file, &hosts, "names the host of a package registry"));
        }
        problems.extend(naming(file, &names, "names something of this machine"));
    }
    Ok(problems)
}

/// The line is not repeated in the message: a name that must not be in the tree
/// need not be in a log.
fn naming(file: &SourceFile, words: &BTreeSet<String>, what: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_ascii_lowercase();
        if words.iter().any(|word| contains_word(&line, word)) {
            problems.push(Problem::line(&file.path, index + 1, what));
        }
    }
    problems
}

/// Whether `line` holds `word` and not as a part of a longer name.
fn contains_word(line: &str, word: &str) -> bool {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    line.match_indices(word).any(|(start, found)| {
        let before = line[..start].chars().next_back();
        let after = line[start + found.len()..].chars().next();
        !before.is_some_and(of_name) && !after.is_some_and(of_name)
    })
}

/// The hosts that the installed package clients would fetch from.
fn registry_hosts() -> BTreeSet<String> {
    let mut said = String::new();
    for path in configurations() {
        said.push_str(&fs::read_to_string(path).unwrap_or_default());
        said.push('\n');
    }
    for (program, arguments) in [
        ("apt-get", ["indextargets", "--format", "$(SITE)"].as_slice()),
        ("python3", &["-c", PIP_DEFAULTS]),
        ("pip", &["config", "list"]),
        ("npm", &["config", "get", "registry"]),
    ] {
        said.push_str(&answer(program, arguments));
        said.push('\n');
    }
    let mut hosts = hosts(&said);
    hosts.extend(cargo_indexes().iter().filter_map(|folder| index_host(folder)));
    hosts
}

/// The files in which cargo, apt and pip are told where to fetch from.
fn configurations() -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list"), PathBuf::from("/etc/pip.conf")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        paths.extend(entries.flatten().map(|entry| entry.path()));
    }
    if let Some(cargo) = cargo_home() {
        paths.push(cargo.join("config.toml"));
        paths.push(cargo.join("config"));
    }
    paths.extend(cargo_indexes().into_iter().map(|folder| folder.join("config.json")));
    paths
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
}

/// The registries that cargo has fetched from, one folder each.
fn cargo_indexes() -> Vec<PathBuf> {
    let indexes = cargo_home().map(|home| home.join("registry/index"));
    let entries = indexes.and_then(|folder| fs::read_dir(folder).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Cargo names the folder of an index `<host>-<hash>`.
fn index_host(folder: &Path) -> Option<String> {
    let (host, _) = folder.file_name()?.to_str()?.rsplit_once('-')?;
    host.contains('.').then(|| host.to_ascii_lowercase())
}

fn answer(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The hosts of all URLs in a text.
fn hosts(text: &str) -> BTreeSet<String> {
    let authorities = text.split("://").skip(1).filter_map(|rest| {
        let end =
            |c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '>' | ')' | ',' | ']');
        rest.split(end).next()
    });
    authorities
        .map(|authority| authority.rsplit('@').next().unwrap_or_default())
        .map(|host| host.split(':').next().unwrap_or_default().to_ascii_lowercase())
        .filter(|host| host.contains('.'))
        .collect()
}

/// Paths and names that only this machine has.
fn machine_names(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let paths = [
        Some(root.to_owned()),
        env::var_os("HOME").map(PathBuf::from),
        cargo_home(),
        Some(workspace::target()?),
    ];
    let mut names: BTreeSet<_> = paths
        .into_iter()
        .flatten()
        .map(|path| path.to_string_lossy().trim_end_matches('/').to_ascii_lowercase())
        // A single folder under the root is a word that programs use too.
        .filter(|path| path.matches('/').count() > 1 && !GUEST_HOMES.contains(&path.as_str()))
        .collect();
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let hostname = hostname.trim().to_ascii_lowercase();
    if hostname.len() >= SHORTEST_HOSTNAME
        && hostname != "localhost"
        && !hostname.starts_with("coldframe")
    {
        names.insert(hostname);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_any_configuration() {
        let text = "URIs: http://deb.example.com/debian\n\"dl\": \"https://u:p@Crates.Example.com:443/x\"\nindex-url = 'https://py.example.com'\nhttp://localhost/\n";
        let found: Vec<_> = hosts(text).into_iter().collect();
        assert_eq!(found, ["crates.example.com", "deb.example.com", "py.example.com"]);
    }

    #[test]
    fn the_folder_of_an_index_names_its_host() {
        let host = |name: &str| index_host(Path::new(name));
        assert_eq!(host("x/index.example.com-0123abcd").as_deref(), Some("index.example.com"));
        assert_eq!(host("x/local-0123abcd"), None);
    }

    #[test]
    fn a_name_is_found_whole_only() {
        let words = BTreeSet::from(["reg.example.com".to_owned()]);
        let found = |text: &str| naming(&SourceFile::new("a.md", text), &words, "x").len();
        assert_eq!(found("see https://REG.example.com/x"), 1);
        assert_eq!(found("see my-reg.example.com"), 0);
        assert_eq!(found("see reg.example.company"), 0);
    }
}
