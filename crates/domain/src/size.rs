//! What a sandbox is given: processors, memory, disk, processes.
//!
//! All of it is fixed when the sandbox is made (S12, S13) and is a hard limit:
//! a workload that overruns it exhausts its own machine (S14).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A named size (U19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeClass {
    /// 1 processor, 512 MiB.
    #[default]
    Small,
    /// 2 processors, 2 GiB.
    Medium,
    /// 4 processors, 8 GiB.
    Large,
}

impl SizeClass {
    /// The word used on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }
}

/// A word that names no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; use small, medium or large")]
pub struct UnknownSize(pub String);

impl FromStr for SizeClass {
    type Err = UnknownSize;

    fn from_str(raw: &str) -> Result<Self, UnknownSize> {
        [Self::Small, Self::Medium, Self::Large]
            .into_iter()
            .find(|size| size.as_str() == raw)
            .ok_or_else(|| UnknownSize(raw.to_owned()))
    }
}

impl fmt::Display for SizeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The least memory a sandbox can start in, in MiB.
pub const MIN_MEMORY_MIB: u32 = 256;
/// The most processors one sandbox can have.
pub const MAX_CPUS: u8 = 16;

/// The limits of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Virtual processors, 1 to [`MAX_CPUS`].
    pub cpus: u8,
    /// Memory of the machine in MiB, at least [`MIN_MEMORY_MIB`].
    pub memory_mib: u32,
    /// Size of the writable layer in MiB. It lives in the machine's memory.
    pub disk_mib: u32,
    /// The most processes and threads of the workload.
    pub processes: u32,
}

/// Why resources were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResources {
    /// Not a possible number of processors.
    #[error("cpus must be 1 to {MAX_CPUS}")]
    Cpus,
    /// Too little to boot in.
    #[error("memory_mb must be at least {MIN_MEMORY_MIB}")]
    Memory,
}

impl Resources {
    /// What a class stands for.
    pub fn of(size: SizeClass) -> Self {
        let (cpus, memory_mib) = match size {
            SizeClass::Small => (1, 512),
            SizeClass::Medium => (2, 2048),
            SizeClass::Large => (4, 8192),
        };
        Self::derive(cpus, memory_mib)
    }

    /// Explicit processors and memory; the rest follows from the memory.
    pub fn explicit(cpus: u8, memory_mib: u32) -> Result<Self, InvalidResources> {
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(InvalidResources::Cpus);
        }
        if memory_mib < MIN_MEMORY_MIB {
            return Err(InvalidResources::Memory);
        }
        Ok(Self::derive(cpus, memory_mib))
    }

    /// The writable layer is half of the memory: it shares the machine's RAM
    /// with processes, and a full layer must give "no space left", not an
    /// out-of-memory kill.
    fn derive(cpus: u8, memory_mib: u32) -> Self {
        let processes = (memory_mib / 2).clamp(256, 8192);
        Self { cpus, memory_mib, disk_mib: memory_mib / 2, processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U19
    #[test]
    fn classes_stand_for_the_published_numbers() {
        let numbers = |size| {
            let resources = Resources::of(size);
            (resources.cpus, resources.memory_mib)
        };
        assert_eq!(numbers(SizeClass::Small), (1, 512));
        assert_eq!(numbers(SizeClass::Medium), (2, 2048));
        assert_eq!(numbers(SizeClass::Large), (4, 8192));
        assert_eq!(SizeClass::default(), SizeClass::Small);
    }

    #[test]
    fn impossible_resources_are_refused() {
        assert_eq!(Resources::explicit(0, 512), Err(InvalidResources::Cpus));
        assert_eq!(Resources::explicit(1, 64), Err(InvalidResources::Memory));
    }
}
