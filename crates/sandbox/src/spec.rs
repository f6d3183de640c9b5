//! What a sandbox is made of.

use domain::{environment::Environment, image::Image, mode::EgressMode, size::Resources};

use crate::{backend::Sealed, volumes::Disk};

/// Everything a backend needs to make the machine.
///
/// Two sandboxes of equal image and resources are clones of one template.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// The verified base image.
    pub image: Image,
    /// Its limits.
    pub resources: Resources,
    /// What it starts from.
    pub source: Source,
    /// What its slots hold before it goes on: a machine that was captured finds
    /// what it had mounted.
    pub disks: Vec<Disk>,
}

/// What a sandbox starts from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// A machine that was booted and that no program of a user ran in.
    #[default]
    Template,
    /// A machine that was captured, of the same image and resources.
    Snapshot(Sealed),
}

/// What the guest is told once it answers; no backend sees it.
#[derive(Clone, Debug, Default)]
pub struct Personality {
    /// Variables of every process.
    pub environment: Environment,
    /// Accounts under which processes may run.
    pub accounts: Accounts,
    /// How much of a network they see.
    pub network: EgressMode,
}

/// The accounts that a caller may start processes as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounts {
    /// `user` (1000) and root, which that user can become by `sudo` anyway.
    #[default]
    UserAndRoot,
    /// `user` only.
    User,
}

impl Accounts {
    /// Their numbers.
    pub fn uids(self) -> Vec<u32> {
        match self {
            Self::UserAndRoot => vec![1000, 0],
            Self::User => vec![1000],
        }
    }
}
