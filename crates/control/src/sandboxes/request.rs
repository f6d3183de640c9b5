//! What a request for a sandbox may say. A value that exists is acceptable.

use std::{collections::BTreeMap, time::Duration};

use domain::{
    environment::Environment,
    region::Region,
    size::{InvalidResources, MAX_CPUS, MIN_MEMORY_MIB, Resources, SizeClass},
    snapshot::OnTimeout,
    template::TemplateName,
};

use crate::{
    egress::Network, error::Error, settings::TierLimits, snapshots::SnapshotRef, volumes::NewMount,
};

/// A request for a sandbox.
#[derive(Clone, Debug)]
pub struct NewSandbox {
    /// What it starts from.
    pub template: TemplateName,
    /// The snapshot it starts from instead; then the size is that one's too.
    pub snapshot: Option<SnapshotRef>,
    /// What it is given.
    pub size: SizeChoice,
    /// What it can reach.
    pub network: Network,
    /// How long it may run.
    pub timeout: Timeout,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Pause it after so long without use.
    pub idle: Option<IdleTimeout>,
    /// Resume it when it is used.
    pub auto_resume: bool,
    /// Variables of its processes. They go to the guest and nowhere else.
    pub environment: Environment,
    /// Its owner's labels.
    pub metadata: Metadata,
    /// Where it must be; anywhere if absent.
    pub region: Option<Region>,
    /// Volumes that it has from the beginning.
    pub volumes: Vec<NewMount>,
    /// Makes the request one, however often it is sent.
    pub idempotency_key: Option<IdempotencyKey>,
}

/// A named size or numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChoice {
    /// A name.
    Class(SizeClass),
    /// Numbers.
    Explicit {
        /// Processors.
        cpus: u8,
        /// Memory in MiB.
        memory_mib: u32,
    },
}

/// How long a sandbox may run: 10 to 3600 seconds (S66).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timeout(Duration);

/// After how long without use a sandbox is paused: 5 to 3600 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimeout(Duration);

/// How many copies are made at once: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies(u32);

/// Labels: at most 64, short and printable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(BTreeMap<String, String>);

/// A key of the client's choice: 1 to 255 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl NewSandbox {
    /// A request that says only what it must.
    pub fn new(template: TemplateName) -> Self {
        Self {
            template,
            snapshot: None,
            size: SizeChoice::Class(SizeClass::default()),
            network: Network::default(),
            timeout: Timeout::default(),
            on_timeout: OnTimeout::default(),
            idle: None,
            auto_resume: false,
            environment: Environment::default(),
            metadata: Metadata::default(),
            region: None,
            volumes: Vec::new(),
            idempotency_key: None,
        }
    }
}

impl SizeChoice {
    /// The name, where it is one.
    pub fn class(self) -> Option<SizeClass> {
        match self {
            Self::Class(class) => Some(class),
            Self::Explicit { .. } => None,
        }
    }

    /// What it stands for, if the tier has room for it (S64).
    pub(crate) fn resources(self, tier: &TierLimits) -> Result<Resources, Error> {
        let (resources, cpus, memory) = match self {
            Self::Class(class) => (Resources::of(class), "size", "size"),
            Self::Explicit { cpus, memory_mib } => {
                let resources = Resources::explicit(cpus, memory_mib).map_err(|error| {
                    let (field, limit) = match error {
                        InvalidResources::Cpus => ("cpus", format!("must be 1 to {MAX_CPUS}")),
                        InvalidResources::Memory => {
                            ("memory_mb", format!("must be at least {MIN_MEMORY_MIB}"))
                        }
                    };
                    Error::invalid(field, limit)
                });
                (resources?, "cpus", "memory_mb")
            }
        };
        if resources.cpus > tier.max_cpus {
            let most = format!("at most {} processors are available here", tier.max_cpus);
            return Err(Error::invalid(cpus, most));
        }
        if resources.memory_mib > tier.max_memory_mib {
            let most = format!("at most {} MiB of memory are available here", tier.max_memory_mib);
            return Err(Error::invalid(memory, most));
        }
        Ok(resources)
    }
}

impl Timeout {
    /// The shortest.
    pub const MIN: Duration = Duration::from_secs(10);
    /// The longest.
    pub const MAX: Duration = Duration::from_secs(3600);

    /// Checks a number of seconds.
    pub fn seconds(seconds: u64) -> Result<Self, Error> {
        let duration = Duration::from_secs(seconds);
        if !(Self::MIN..=Self::MAX).contains(&duration) {
            return Err(Error::invalid("timeout_seconds", "must be 10 to 3600"));
        }
        Ok(Self(duration))
    }

    /// The duration.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Default for Timeout {
    fn default() -> Self {
        Self(Duration::from_secs(300))
    }
}

impl IdleTimeout {
    /// Checks a number of seconds.
    pub fn seconds(seconds: u64) -> Result<Self, Error> {
        if !(5..=3600).contains(&seconds) {
            return Err(Error::invalid("idle_timeout_seconds", "must be 5 to 3600"));
        }
        Ok(Self(Duration::from_secs(seconds)))
    }

    /// The duration.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl Copies {
    /// Checks a number.
    pub fn new(count: u32) -> Result<Self, Error> {
        if !(1..=100).contains(&count) {
            return Err(Error::invalid("count", "must be 1 to 100"));
        }
        Ok(Self(count))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for Copies {
    fn default() -> Self {
        Self(1)
    }
}

impl Metadata {
    /// Checks every label.
    pub fn new(labels: BTreeMap<String, String>) -> Result<Self, Error> {
        let refuse = |detail: String| Err(Error::invalid("metadata", detail));
        if labels.len() > 64 {
            return refuse("at most 64 labels".to_owned());
        }
        for (key, value) in &labels {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            if key.is_empty() || key.len() > 64 || !key.chars().all(allowed) {
                return refuse(
                    "a label is named by 1 to 64 letters, digits, '.', '_', '-', '/'".to_owned(),
                );
            }
            if value.len() > 1024 || value.chars().any(char::is_control) {
                return refuse(format!(
                    "{key} is longer than 1024 bytes or holds control characters"
                ));
            }
        }
        Ok(Self(labels))
    }

    pub(crate) fn get(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl IdempotencyKey {
    /// Checks a key.
    pub fn new(key: String) -> Result<Self, Error> {
        if key.is_empty() || key.len() > 255 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let detail = "must be 1 to 255 visible ASCII characters";
            return Err(Error::invalid("Idempotency-Key", detail));
        }
        Ok(Self(key))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S66
    #[test]
    fn a_time_limit_is_ten_seconds_to_an_hour() {
        for (seconds, valid) in [(0, false), (9, false), (10, true), (3600, true), (3601, false)] {
            assert_eq!(Timeout::seconds(seconds).is_ok(), valid, "{seconds}");
        }
        assert!(Timeout::seconds(u64::MAX).is_err());
    }

    /// S61, S64, U19
    #[test]
    fn a_tier_caps_every_way_to_ask_for_more() {
        let tier = TierLimits { max_cpus: 2, max_memory_mib: 2048, max_concurrent: 1 };
        let explicit = |cpus, memory_mib| SizeChoice::Explicit { cpus, memory_mib };
        assert!(SizeChoice::Class(SizeClass::Medium).resources(&tier).is_ok());
        assert!(SizeChoice::Class(SizeClass::Large).resources(&tier).is_err());
        assert!(explicit(2, 2048).resources(&tier).is_ok());
        assert!(explicit(3, 512).resources(&tier).is_err());
        assert!(explicit(1, 2049).resources(&tier).is_err());
        assert!(explicit(0, 512).resources(&tier).is_err());
    }

    #[test]
    fn labels_are_bounded_and_printable() {
        let label = |key: &str, value: &str| {
            Metadata::new(BTreeMap::from([(key.to_owned(), value.to_owned())]))
        };
        assert!(label("team/a.b-c_d", "é 1").is_ok());
        for (key, value) in [("", "x"), ("a b", "x"), ("a", "\0"), ("a", "x\n")] {
            assert!(label(key, value).is_err(), "{key:?} {value:?}");
        }
        assert!(label("a", &"x".repeat(1025)).is_err());
        assert!(IdempotencyKey::new("a b".into()).is_err());
        assert!(IdempotencyKey::new("6a1f".into()).is_ok());
    }
}
