//! What an installation is told: flags, environment, a file, defaults, in this
//! order.
//!
//! [`SETTINGS`] is the one list. A key `state_dir` is `state_dir = …` in the
//! file, `COLDFRAME_STATE_DIR` in the environment and, where a command has it,
//! `--state-dir`. The reference page is generated from it.
//!
//! Invariants:
//!
//! - A key that nobody knows is an error: a limit that was misspelt must not
//!   silently not apply.
//! - All mistakes are reported at once, each with where it was made.
//! - There is no setting for a secret. Tokens come from `COLDFRAME_TOKEN` or a
//!   private file ([`crate::remote`]), so a configuration can be shown to anyone.

mod settings;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use control::{admission::Capacity, egress::EgressSettings, pool::PoolSettings, settings::Totals};
use domain::{mode::EgressMode, region::Region};
use store::objects::ObjectSettings;
use store::oci::registry::Registries;

use self::settings::SETTINGS;
use crate::error::Failure;

/// Where the file is unless said otherwise.
const FILE: &str = "/etc/coldframe/config.toml";
/// What it is called in an installation that has a folder of its own, as
/// `FOLDER/bin/coldframe` has.
const OWN_FILE: &str = "coldframe.toml";

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) state_dir: PathBuf,
    images: Option<PathBuf>,
    cache_dir: Option<PathBuf>,
    pub(crate) qemu: PathBuf,
    pub(crate) uid_base: u32,
    pub(crate) gateway_uid: u32,
    pub(crate) dns_servers: Vec<SocketAddr>,
    pub(crate) upstream_roots: Option<PathBuf>,
    database: Option<String>,
    pub(crate) registries: Registries,
    pub(crate) listen: SocketAddr,
    pub(crate) names: Vec<String>,
    pub(crate) region: Region,
    pub(crate) max_cpus: u8,
    pub(crate) max_memory_mb: u32,
    pub(crate) max_sandboxes: u32,
    pub(crate) totals: Totals,
    pub(crate) capacity: Capacity,
    pub(crate) networks: Vec<EgressMode>,
    pub(crate) egress: EgressSettings,
    pub(crate) max_paused: u32,
    pub(crate) max_snapshots: u32,
    pub(crate) pause_retention_hours: u32,
    egress_log_days: u32,
    snapshot_memory_mb: Option<u64>,
    pub(crate) pool: PoolSettings,
    /// The largest volume.
    pub(crate) max_volume_mb: u32,
    /// All volumes together.
    pub(crate) max_volumes_mb: u32,
    /// Where checkpoints are kept, if not in the state folder.
    objects: Option<String>,
    objects_endpoint: Option<String>,
    objects_region: String,
    objects_credentials: Option<PathBuf>,
    pub(crate) url: String,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

/// How the server writes its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// A setting that a flag gave.
pub(crate) type Override = (&'static str, Option<String>);

impl Config {
    /// Reads what applies to this process. `file` is what `--config` named.
    pub(crate) fn load(file: Option<&Path>, flags: &[Override]) -> Result<Self, Failure> {
        let (path, required) = match (file, own_file()) {
            (Some(path), _) => (path.to_owned(), true),
            (None, Some(path)) => (path, true),
            (None, None) => (FILE.into(), false),
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(error) => {
                let message = format!("{} cannot be read: {error}", path.display());
                return Err(Failure::usage(message));
            }
        };
        let file = (path.display().to_string(), text);
        Self::read(&file.0, &file.1, |name| std::env::var(name).ok(), flags).map_err(|mistakes| {
            Failure::usage(format!("the configuration has mistakes:\n  {}", mistakes.join("\n  ")))
                .hint("the settings are in docs/reference/config.md")
        })
    }

    /// Puts the sources together, the weakest first, or lists every mistake.
    fn read(
        file: &str,
        text: &str,
        environment: impl Fn(&str) -> Option<String>,
        flags: &[Override],
    ) -> Result<Self, Vec<String>> {
        let mut config = Self::standard();
        let mut mistakes = Vec::new();
        match text.parse::<toml::Table>() {
            Err(error) => mistakes.push(format!("{file}: {}", error.to_string().trim_end())),
            Ok(table) => {
                for (key, value) in &table {
                    let set = plain(value).and_then(|text| config.set(key, &text));
                    if let Err(mistake) = set {
                        mistakes.push(format!("{file}: {key}: {mistake}"));
                    }
                }
            }
        }
        for setting in &SETTINGS {
            let name = variable(setting.key);
            if let Some(text) = environment(&name)
                && let Err(mistake) = (setting.set)(&mut config, &text)
            {
                mistakes.push(format!("{name}: {mistake}"));
            }
        }
        for (key, text) in flags {
            if let Some(text) = text
                && let Err(mistake) = config.set(key, text)
            {
                mistakes.push(format!("{}: {mistake}", flag(key)));
            }
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// The part that decides how machines are made and found, as variables for
    /// another process of ours.
    pub(crate) fn machine_variables(&self) -> [(String, OsString); 4] {
        [
            (variable("state_dir"), self.state_dir.clone().into()),
            (variable("cache_dir"), self.cache_dir().into()),
            (variable("qemu"), self.qemu.clone().into()),
            (variable("uid_base"), self.uid_base.to_string().into()),
        ]
    }

    /// What [`Config::machine_variables`] of another process says.
    pub(crate) fn of_variables() -> Result<Self, Failure> {
        Self::load(Some(Path::new("/dev/null")), &[])
    }

    /// What applies when nothing is said; a test holds it against [`SETTINGS`].
    fn standard() -> Self {
        Self {
            state_dir: "/var/lib/coldframe".into(),
            images: None,
            cache_dir: None,
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            uid_base: 2_000_000_000,
            gateway_uid: 1_999_999_999,
            dns_servers: Vec::new(),
            upstream_roots: None,
            database: None,
            registries: Registries::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            names: Vec::new(),
            region: Region::local(),
            max_cpus: 4,
            max_memory_mb: 8192,
            max_sandboxes: 20,
            totals: Totals::default(),
            capacity: Capacity::default(),
            networks: EgressMode::ALL.into_iter().filter(|mode| *mode < EgressMode::Open).collect(),
            egress: EgressSettings::default(),
            max_paused: 20,
            max_snapshots: 20,
            pause_retention_hours: 168,
            egress_log_days: 30,
            snapshot_memory_mb: None,
            pool: PoolSettings { ready: Vec::new(), memory_mib: 4096 },
            max_volume_mb: 102_400,
            max_volumes_mb: 512_000,
            objects: None,
            objects_endpoint: None,
            objects_region: "us-east-1".to_owned(),
            objects_credentials: None,
            url: "http://127.0.0.1:7070".to_owned(),
            log: "info".to_owned(),
            log_format: LogFormat::Text,
        }
    }

    /// For how long lines of the egress log are kept.
    pub(crate) fn egress_log(&self) -> Duration {
        Duration::from_secs(u64::from(self.egress_log_days) * 24 * 3600)
    }

    /// The folder of images.
    pub(crate) fn images(&self) -> PathBuf {
        self.images.clone().unwrap_or_else(|| self.state_dir.join("images"))
    }

    /// The folder of what machines are made from.
    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.cache_dir.clone().unwrap_or_else(|| self.state_dir.join("cache"))
    }

    /// The folder of the server's snapshots.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.state_dir.join("snapshots")
    }

    /// The most bytes that loaded snapshots may take, if that was said.
    pub(crate) fn snapshot_memory(&self) -> Option<u64> {
        self.snapshot_memory_mb.map(|mib| mib.saturating_mul(1024 * 1024))
    }

    /// Where the database is. It may hold a password: show it nowhere.
    pub(crate) fn database(&self) -> String {
        let file = || format!("sqlite://{}", self.state_dir.join("coldframe.db").display());
        self.database.clone().unwrap_or_else(file)
    }

    /// Where checkpoints of volumes are kept.
    pub(crate) fn objects(&self) -> ObjectSettings {
        let folder = || format!("file://{}", self.state_dir.join("objects").display());
        ObjectSettings {
            url: self.objects.clone().unwrap_or_else(folder),
            endpoint: self.objects_endpoint.clone(),
            signing_region: Some(self.objects_region.clone()),
            credentials: self.objects_credentials.clone(),
            patience: None,
        }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        match SETTINGS.iter().find(|setting| setting.key == key) {
            Some(setting) => (setting.set)(self, text),
            None => Err("there is no such setting".to_owned()),
        }
    }
}

/// The file of the installation that this program is part of, if that has one.
///
/// Whoever can write it can replace the program itself.
fn own_file() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent().filter(|folder| folder.ends_with("bin"))?.parent()?;
    Some(folder.join(OWN_FILE)).filter(|path| path.is_file())
}

/// The name of a setting in the environment.
fn variable(key: &str) -> String {
    format!("COLDFRAME_{}", key.to_ascii_uppercase())
}

/// The name of a setting on the command line.
fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// A value of the file as the text that a flag would hold.
fn plain(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(_)
        | toml::Value::Datetime(_)
        | toml::Value::Array(_)
        | toml::Value::Table(_) => Err("a text or a number is expected".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        text: &str,
        environment: &[(&str, &str)],
        flags: &[Override],
    ) -> Result<Config, Vec<String>> {
        let environment = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Config::read("config.toml", text, environment, flags)
    }

    #[test]
    fn the_listed_defaults_are_the_defaults() {
        let mut config = Config::standard();
        for setting in SETTINGS.iter().filter(|setting| !setting.default.contains('<')) {
            assert_eq!(config.set(setting.key, setting.default), Ok(()), "{}", setting.key);
        }
        assert_eq!(config, Config::standard());
        assert_eq!(config.database(), "sqlite:///var/lib/coldframe/coldframe.db");
        assert_eq!(config.images(), Path::new("/var/lib/coldframe/images"));
    }

    #[test]
    fn a_flag_beats_the_environment_which_beats_the_file() {
        let text = "listen = \"127.0.0.1:1\"\nmax_cpus = 1\nregion = \"eu\"";
        let environment = [("COLDFRAME_LISTEN", "127.0.0.1:2"), ("COLDFRAME_MAX_CPUS", "2")];
        let config = read(text, &environment, &[("listen", Some("127.0.0.1:3".to_owned()))]);
        let config = config.unwrap();
        assert_eq!(config.listen.port(), 3);
        assert_eq!(config.max_cpus, 2);
        assert_eq!(config.region.as_str(), "eu");
    }

    #[test]
    fn all_mistakes_are_reported_at_once_each_with_its_place() {
        let text = "max_cpu = 1\nstate_dir = \"here\"\nlog = true";
        let mistakes = read(text, &[("COLDFRAME_LISTEN", "x")], &[("max_cpus", Some("0".into()))]);
        let mistakes = mistakes.unwrap_err();
        for (place, said) in [
            ("config.toml: max_cpu:", "no such setting"),
            ("config.toml: state_dir:", "absolute"),
            ("config.toml: log:", "text or a number"),
            ("COLDFRAME_LISTEN:", "127.0.0.1:7070"),
            ("--max-cpus:", "possible number"),
        ] {
            let found = mistakes.iter().any(|line| line.starts_with(place) && line.contains(said));
            assert!(found, "{place} {said}: {mistakes:?}");
        }
        assert_eq!(mistakes.len(), 5);
    }

    #[test]
    fn a_factor_and_a_bound_reach_their_places() {
        let config = read("memory_overcommit = 1.5\nquota_cpus = 8", &[], &[]).unwrap();
        assert_eq!((config.capacity.memory_percent, config.totals.cpus), (150, Some(8)));
    }

    /// The page as the list has it.
    fn reference() -> String {
        let mut page = "# Configuration\n\n\
            Generated from the list in `crates/cli/src/config.rs`; do not edit.\n\
            Every setting can stand in the file, in the environment and, where a command has it, in a flag; the flag wins, then the environment.\n"
            .to_owned();
        for settings::Setting { key, default, help, .. } in &SETTINGS {
            page.push_str(&format!(
                "\n## `{key}`\n\n{help}\n\nEnvironment: `{}`.\nDefault: `{default}`.\n",
                variable(key)
            ));
        }
        page
    }

    #[test]
    fn the_reference_page_is_up_to_date() {
        crate::golden::check("docs/reference/config.md", &reference());
    }
}
