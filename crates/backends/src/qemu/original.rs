//! What a machine continues from: a template, or a snapshot that was loaded.
//!
//! Both are sealed files that the machine maps privately and reads; from here on
//! they differ in one option of QEMU and in how long they are kept.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use domain::id::SnapshotId;
use sandbox::spec::SandboxSpec;

use super::{
    command::Purpose,
    filling::Filling,
    host::Host,
    snapshot::{Bound, Loaded},
    template::Template,
};

/// What a machine continues from.
#[derive(Clone, Debug)]
pub(super) enum Original {
    /// A machine that was booted for this.
    Template(Arc<Template>),
    /// A sandbox that was captured.
    Snapshot(Arc<Loaded>),
}

impl Original {
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        match self {
            Self::Template(template) => template.memory.as_fd(),
            Self::Snapshot(loaded) => loaded.memory.as_fd(),
        }
    }

    /// Whether the memory is whole, or still becomes it.
    pub(super) fn filled(&self) -> &Filling {
        match self {
            Self::Template(template) => &template.filled,
            Self::Snapshot(loaded) => &loaded.filled,
        }
    }

    pub(super) fn state(&self) -> BorrowedFd<'_> {
        match self {
            Self::Template(template) => template.state.as_fd(),
            Self::Snapshot(loaded) => loaded.state.as_fd(),
        }
    }

    pub(super) fn kernel(&self) -> BorrowedFd<'_> {
        match self {
            Self::Template(template) => template.kernel.as_fd(),
            Self::Snapshot(loaded) => loaded.kernel.as_fd(),
        }
    }

    pub(super) fn purpose(&self) -> Purpose {
        match self {
            Self::Template(_) => Purpose::Clone,
            Self::Snapshot(_) => Purpose::Copy,
        }
    }

    /// What a capture of the machine will be bound to.
    pub(super) fn bound(&self, spec: &SandboxSpec, host: &Host) -> Bound {
        match self {
            Self::Template(_) => Bound::of(spec, host),
            Self::Snapshot(loaded) => loaded.bound().clone(),
        }
    }

    /// The snapshot, and the file to hold for as long as a machine maps it.
    pub(super) fn snapshot(&self) -> Option<(SnapshotId, Arc<OwnedFd>)> {
        match self {
            Self::Template(_) => None,
            Self::Snapshot(loaded) => Some((loaded.id().clone(), Arc::clone(&loaded.memory))),
        }
    }
}
