//! Which registries the package clients of an image use.
//!
//! The clients are asked inside the new root, so that the answer follows the
//! mirrors that the image was built for and the defaults that its own clients
//! know. It becomes part of the manifest; a list of permitted destinations that
//! says `preset:packages` means these. Nothing here names a registry.
//!
//! A client is run without a home and told to leave nothing behind: the root must
//! come out as if it had not been asked.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use domain::allow::Entry;

use super::command::text;

/// The addresses that pip uses unless it is told otherwise.
const PIP_DEFAULTS: &str = "from pip._internal.models.index import PyPI; print(PyPI.url, 'https://' + PyPI.file_storage_domain)";

/// Files in which clients are told where to fetch from.
const CONFIGURATIONS: [&str; 5] =
    ["etc/apt/sources.list", "etc/pip.conf", "etc/npmrc", "etc/cargo/config.toml", "root/.npmrc"];

/// Folders of such files.
const FOLDERS: [&str; 1] = ["etc/apt/sources.list.d"];

/// How each client is asked, and the file without which it is not installed.
const CLIENTS: [(&str, &[&str]); 3] = [
    ("usr/lib/python3/dist-packages/pip", &["python3", "-B", "-c", PIP_DEFAULTS]),
    ("usr/lib/python3/dist-packages/pip", &["python3", "-B", "-m", "pip", "config", "list"]),
    ("usr/bin/npm", &["npm", "config", "get", "registry"]),
];

/// Asks the clients in `root`.
pub(crate) fn of(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut said = String::new();
    for path in CONFIGURATIONS.iter().map(|path| root.join(path)).chain(listed(root)?) {
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            said.push_str(&fs::read_to_string(path)?);
            said.push('\n');
        }
    }
    for (program, question) in CLIENTS {
        if root.join(program).exists() {
            let mut client = Command::new("chroot");
            client.arg(root).args(question).env_clear();
            client.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/nonexistent");
            client.env("npm_config_cache", "/nonexistent").env("PIP_NO_CACHE_DIR", "1");
            said.push_str(&text(&mut client)?);
            said.push('\n');
        }
    }
    Ok(entries(&said).into_iter().collect())
}

fn listed(root: &Path) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let mut paths = Vec::new();
    for folder in FOLDERS.iter().map(|folder| root.join(folder)).filter(|folder| folder.exists()) {
        for entry in fs::read_dir(folder)? {
            paths.push(entry?.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The entries for all web addresses in a text. Lines that are comments count
/// for nothing.
fn entries(text: &str) -> BTreeSet<Entry> {
    let lines = text.lines().map(str::trim_start);
    lines.filter(|line| !line.starts_with(['#', ';'])).flat_map(of_line).collect()
}

fn of_line(line: &str) -> Vec<Entry> {
    let starts = line.match_indices("://").map(|(index, _)| index);
    let entry = |index: usize| {
        let letter = |c: char| c.is_ascii_alphanumeric();
        let scheme = line[..index].rsplit(|c| !letter(c)).next().unwrap_or_default();
        let end = |c: char| c.is_whitespace() || "/\"'>),]?#".contains(c);
        let authority = line[index + 3..].split(end).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        // What is not fetched over the web needs nobody's permission.
        matches!(scheme, "http" | "https").then(|| format!("{scheme}://{host}").parse().ok())?
    };
    starts.filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S94: what the clients say becomes entries, credentials left out.
    #[test]
    fn addresses_become_entries() {
        let text = "# https://comment.test/\n\
            deb [trusted=yes] copy:/x ./\n\
            deb http://deb.example.com/debian bookworm main\n\
            URIs: https://mirror.example.com:8443/debian ftp://old.example.com/\n\
            global.index-url='https://user:word@py.example.com/simple'\n\
            https://py.example.com/pypi https://files.example.com\n";
        let found: Vec<_> = entries(text).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "http://deb.example.com",
                "files.example.com",
                "mirror.example.com:8443",
                "py.example.com",
            ]
        );
    }

    #[test]
    fn a_root_without_clients_has_none() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(of(root.path()).expect("nobody to ask").is_empty());
        fs::create_dir_all(root.path().join("etc/apt")).expect("made");
        let sources = root.path().join("etc/apt/sources.list");
        fs::write(sources, "deb https://deb.example.com/ x main\n").expect("written");
        let found = of(root.path()).expect("read");
        assert_eq!(found, ["deb.example.com".parse().expect("an entry")]);
    }
}
