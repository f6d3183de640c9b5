//! Which packages go into an image, and their files.
//!
//! Packages are chosen once and the choice is kept as a lock: the same lock gives
//! the same image, with or without a network. `--update` makes a new choice.
//!
//! The building machine's own apt does the choosing and fetching, so mirrors,
//! proxies and signing keys are whatever its administrator configured. Two
//! things are overridden: nothing counts as installed, and only the
//! distribution's own suites of the wanted release are considered, so that a
//! vendor's package source on the building machine cannot end up in an image.
//! What apt accepted by signature is checked again by digest before each build.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use domain::image::{Input, digest::Digest};
use serde::{Deserialize, Serialize};

use super::{
    command::{output, text},
    recipe::Recipe,
};

/// Packages fetched by one call of apt, so that progress can be shown.
const FETCHED_AT_ONCE: usize = 24;

/// A folder of package files and the locks that name them.
#[derive(Debug)]
pub(crate) struct Packages {
    cache: PathBuf,
}

/// A choice of packages.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lock {
    /// Digest of what was asked for; another wish needs another choice.
    wish: Digest,
    /// Package source lines of the distribution, for apt inside the image.
    pub sources: Vec<String>,
    pub kernel: Package,
    pub userland: Vec<Package>,
}

/// One chosen package.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    #[serde(flatten)]
    pub input: Input,
    /// Its entry in a package index, up to the file name.
    pub stanza: String,
}

impl Lock {
    /// Every package, sorted, for the manifest.
    pub(crate) fn inputs(&self) -> Vec<Input> {
        let mut inputs: Vec<_> = self.all().map(|package| package.input.clone()).collect();
        inputs.sort();
        inputs
    }

    fn all(&self) -> impl Iterator<Item = &Package> {
        self.userland.iter().chain([&self.kernel])
    }
}

impl Package {
    /// The name of its file in the cache.
    pub(crate) fn file(&self) -> String {
        let Input { name, version, architecture, .. } = &self.input;
        format!("{name}_{}_{architecture}.deb", version.replace(':', "%3a"))
    }
}

impl Packages {
    /// The packages below `cache`, which is made if it is not there.
    pub(crate) fn open(cache: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(cache.join("apt"))?;
        Ok(Self { cache })
    }

    /// The path of `package`'s file.
    pub(crate) fn path(&self, package: &Package) -> PathBuf {
        self.cache.join(package.file())
    }

    /// The choice made earlier for `recipe`, if there is one.
    pub(crate) fn locked(&self, recipe: &Recipe) -> anyhow::Result<Option<Lock>> {
        let path = self.lock_path(recipe);
        if !path.exists() {
            return Ok(None);
        }
        let lock = serde_json::from_slice::<Lock>(&fs::read(&path)?);
        // A lock of another layout is one we cannot use, not an error.
        Ok(lock.ok().filter(|lock| wish(recipe).is_ok_and(|wish| wish == lock.wish)))
    }

    /// Chooses packages for `recipe` among the newest that apt knows of.
    pub(crate) fn choose(&self, recipe: &Recipe) -> anyhow::Result<Lock> {
        self.configure(recipe)?;
        output(self.apt("apt-get").args(["-qq", "update"]))?;
        let sources = self.sources(recipe)?;
        let mut install = self.apt("apt-get");
        install.args(["-qq", "--simulate", "install", "?essential", "apt"]);
        let simulated = text(install.args(&recipe.packages))?;
        let wanted = simulated.lines().filter_map(chosen).collect::<anyhow::Result<Vec<_>>>()?;
        let userland = self.stanzas(&wanted)?;
        let lock = Lock { wish: wish(recipe)?, sources, kernel: self.kernel(recipe)?, userland };
        fs::write(self.lock_path(recipe), serde_json::to_vec_pretty(&lock)?)?;
        Ok(lock)
    }

    /// Packages of `lock` whose files are not in the cache yet.
    pub(crate) fn missing<'a>(&self, lock: &'a Lock) -> Vec<&'a Package> {
        lock.all().filter(|package| !self.path(package).exists()).collect()
    }

    /// Fetches `packages`, telling `progress` how many are done after each part.
    pub(crate) fn fetch(
        &self,
        recipe: &Recipe,
        packages: &[&Package],
        mut progress: impl FnMut(usize),
    ) -> anyhow::Result<()> {
        self.configure(recipe)?;
        for (part, packages) in packages.chunks(FETCHED_AT_ONCE).enumerate() {
            progress(part * FETCHED_AT_ONCE);
            let exact = |package: &&Package| {
                let Input { name, version, architecture, .. } = &package.input;
                let qualifier =
                    if architecture == "all" { &recipe.architecture } else { architecture };
                format!("{name}:{qualifier}={version}")
            };
            let mut download = self.apt("apt-get");
            download.args(["-qq", "download"]).args(packages.iter().map(exact));
            output(download.current_dir(&self.cache)).context(
                "a chosen package is no longer offered or the mirror cannot be reached; \
                 --update chooses anew",
            )?;
        }
        Ok(())
    }

    /// Checks every file of `lock` against the digest that its index gave.
    pub(crate) fn verify(&self, lock: &Lock) -> anyhow::Result<()> {
        for package in lock.all() {
            let path = self.path(package);
            let bytes =
                fs::read(&path).with_context(|| format!("{} is missing", path.display()))?;
            if Digest::of(&bytes) != package.input.sha256 {
                fs::remove_file(&path)?;
                bail!("{} was damaged and has been removed; try again", path.display());
            }
        }
        Ok(())
    }

    /// The time of the newest package: the one time stamp that depends on
    /// nothing but the packages.
    pub(crate) fn newest(&self, lock: &Lock) -> anyhow::Result<u64> {
        let mut newest = 0;
        for package in lock.all() {
            newest = newest.max(built_at(&self.path(package))?);
        }
        Ok(newest)
    }

    /// Writes a package source that offers the userland of `lock` and no other.
    pub(crate) fn offer(&self, lock: &Lock, directory: &Path) -> anyhow::Result<()> {
        let mut index = String::new();
        for package in &lock.userland {
            let file = package.file();
            std::os::unix::fs::symlink(self.path(package), directory.join(&file))?;
            index.push_str(&format!("{}Filename: ./{file}\n\n", package.stanza));
        }
        Ok(fs::write(directory.join("Packages"), index)?)
    }

    /// The kernel that the recipe's package depends on.
    fn kernel(&self, recipe: &Recipe) -> anyhow::Result<Package> {
        let name = &recipe.kernel.package;
        let shown = text(self.apt("apt-cache").args(["show", "--no-all-versions", name]))?;
        let depends = field(&shown, "Depends").unwrap_or_default();
        let kernel = depends.split([' ', ',']).next().filter(|name| !name.is_empty());
        let kernel = kernel.with_context(|| format!("{name} depends on no kernel"))?;
        let shown = text(self.apt("apt-cache").args(["show", "--no-all-versions", kernel]))?;
        Package::read(shown.split("\n\n").next().unwrap_or_default())
    }

    /// The index entries of packages given as name, version and architecture.
    fn stanzas(&self, wanted: &[(String, String)]) -> anyhow::Result<Vec<Package>> {
        let exact = wanted.iter().map(|(name, version)| format!("{name}={version}"));
        let shown = text(self.apt("apt-cache").arg("show").args(exact))?;
        let mut found = BTreeMap::new();
        for stanza in shown.split("\n\n").filter(|stanza| !stanza.trim().is_empty()) {
            let package = Package::read(stanza)?;
            found.insert((package.input.name.clone(), package.input.version.clone()), package);
        }
        let missing: Vec<_> = wanted.iter().filter(|it| !found.contains_key(it)).collect();
        ensure!(missing.is_empty(), "apt does not describe {missing:?}");
        let wanted: BTreeSet<_> = wanted.iter().collect();
        Ok(found.into_iter().filter(|(key, _)| wanted.contains(key)).map(|(_, it)| it).collect())
    }

    /// The distribution's package sources as apt is configured here.
    fn sources(&self, recipe: &Recipe) -> anyhow::Result<Vec<String>> {
        let format = "$(ORIGIN) $(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)";
        let mut targets = self.apt("apt-get");
        targets.args(["indextargets", "--format", format, "Created-By: Packages"]);
        let suites = suites(recipe);
        let mut lines = Vec::new();
        for target in text(&mut targets)?.lines() {
            let mut words = target.splitn(3, ' ');
            let (origin, codename) = (words.next(), words.next().unwrap_or_default());
            if origin == Some("Debian") && suites.iter().any(|suite| suite == codename) {
                lines.push(without_password(words.next().unwrap_or_default()));
            }
        }
        lines.sort();
        lines.dedup();
        ensure!(
            !lines.is_empty(),
            "apt on this machine has no source for Debian {}; add one to /etc/apt/sources.list.d",
            recipe.release
        );
        Ok(lines)
    }

    /// Writes the overrides that [`Packages::apt`] points apt at.
    fn configure(&self, recipe: &Recipe) -> anyhow::Result<()> {
        let apt = self.cache.join("apt");
        let pin =
            |suite| format!("Package: *\nPin: release o=Debian,n={suite}\nPin-Priority: 990\n");
        let mut pins = suites(recipe).map(pin).join("\n");
        pins.push_str("\nPackage: *\nPin: release o=*\nPin-Priority: -1\n");
        fs::write(apt.join("preferences"), pins)?;
        fs::write(apt.join("empty"), "")?;
        let apt = apt.display();
        let architecture = &recipe.architecture;
        let settings = format!(
            r#"Dir::State::status "{apt}/empty";
Dir::State::extended_states "{apt}/empty";
Dir::Etc::preferences "{apt}/preferences";
Dir::Etc::preferencesparts "/dev/null";
Dir::Cache "{apt}";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
"#
        );
        Ok(fs::write(self.settings(), settings)?)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // Read after the machine's own configuration; APT_CONFIG is read before.
        command.arg("-c").arg(self.settings());
        command
    }

    fn settings(&self) -> PathBuf {
        self.cache.join("apt/settings")
    }

    fn lock_path(&self, recipe: &Recipe) -> PathBuf {
        self.cache.join(format!("{}.lock.json", recipe.name))
    }
}

impl Package {
    fn read(stanza: &str) -> anyhow::Result<Self> {
        let need = |name| {
            let value = field(stanza, name).map(str::to_owned);
            value.with_context(|| format!("a package index entry has no {name}:\n{stanza}"))
        };
        let input = Input {
            name: need("Package")?,
            version: need("Version")?,
            architecture: need("Architecture")?,
            sha256: format!("sha256:{}", need("SHA256")?).parse()?,
        };
        // The name of a file in the mirror's pool means nothing in our folder.
        let mut kept = String::new();
        for line in stanza.lines().filter(|line| !line.starts_with("Filename:")) {
            kept.push_str(line);
            kept.push('\n');
        }
        Ok(Self { input, stanza: kept })
    }
}

/// The suites of a release that its distribution publishes updates in.
fn suites(recipe: &Recipe) -> [String; 3] {
    let release = &recipe.release;
    [release.clone(), format!("{release}-updates"), format!("{release}-security")]
}

/// What decides which packages are chosen.
fn wish(recipe: &Recipe) -> anyhow::Result<Digest> {
    let Recipe { release, architecture, packages, kernel, .. } = recipe;
    let wish = (release, architecture, packages, &kernel.package);
    Ok(Digest::of(&serde_json::to_vec(&wish)?))
}

/// Name and version from a line `Inst name (version suites [architecture])`.
fn chosen(line: &str) -> Option<anyhow::Result<(String, String)>> {
    let rest = line.strip_prefix("Inst ")?;
    let parsed = rest.split_once(" (").and_then(|(name, rest)| {
        let version = rest.split(' ').next()?;
        let name = name.split([' ', ':']).next()?;
        Some((name.to_owned(), version.to_owned()))
    });
    Some(parsed.with_context(|| format!("apt printed a line we cannot read: {line}")))
}

/// The value of a field that fits on one line.
fn field<'a>(stanza: &'a str, name: &str) -> Option<&'a str> {
    let line = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

/// Removes a user name and password from the address in a source line: an
/// image is handed around, and its builder's credential is not.
fn without_password(line: &str) -> String {
    match (line.find("://"), line.find('@')) {
        (Some(scheme), Some(at)) if !line[scheme + 3..at].contains('/') => {
            format!("{}{}", &line[..scheme + 3], &line[at + 1..])
        }
        _ => line.to_owned(),
    }
}

/// When a package was built, from the header of its first archive member.
fn built_at(path: &Path) -> anyhow::Result<u64> {
    const MAGIC: &[u8] = b"!<arch>\n";
    let mut header = [0; 36];
    fs::File::open(path)?.read_exact(&mut header)?;
    ensure!(header.starts_with(MAGIC), "{} is not a package", path.display());
    // A member header is a name of 16 bytes, then a decimal time of 12.
    let time = std::str::from_utf8(&header[24..36])?.trim();
    time.parse().with_context(|| format!("{} has no time", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_installation_names_exact_versions() {
        let line = "Inst libc6 (2.36-9+deb12u13 Debian:12/stable, Debian-Security:12 [amd64]) []";
        let (name, version) = chosen(line).expect("an Inst line").expect("readable");
        assert_eq!((name.as_str(), version.as_str()), ("libc6", "2.36-9+deb12u13"));
        assert!(chosen("Conf libc6 (2.36 [amd64])").is_none());
        assert!(chosen("Inst libc6").is_some_and(|parsed| parsed.is_err()));
    }

    /// S29
    #[test]
    fn a_password_in_a_source_line_does_not_reach_the_image() {
        let line = without_password("deb https://me:secret@mirror.test/debian bookworm main");
        assert_eq!(line, "deb https://mirror.test/debian bookworm main");
        let plain = "deb http://mirror.test/a@b bookworm main";
        assert_eq!(without_password(plain), plain);
    }
}
