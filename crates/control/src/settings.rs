//! What an operator decides about an installation.

use std::{sync::Arc, time::Duration};

use domain::{isolation::IsolationClass, mode::EgressMode, region::Region, size::Resources};

use crate::{
    admission::{Capacity, Quota},
    egress::{EgressSettings, Gateway},
    pool::PoolSettings,
};

/// The rules of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is. Nothing of it lives elsewhere (S62, U20).
    pub region: Region,
    /// What each organisation may have.
    pub tier: TierLimits,
    /// What all sandboxes of an organisation may have beside their number.
    pub totals: Totals,
    /// How much of the host may be promised.
    pub capacity: Capacity,
    /// The least separation that is accepted; nothing lowers it (U2).
    pub least_isolation: IsolationClass,
    /// What is kept of sandboxes, and for how long.
    pub snapshots: SnapshotLimits,
    /// Machines that are made ahead.
    pub pool: PoolSettings,
    /// What a sandbox may be allowed to reach here.
    pub networks: Vec<EgressMode>,
    /// What judges it. Without one, nothing but `off` is possible.
    pub gateway: Option<Arc<dyn Gateway>>,
    /// What the operator opened.
    pub egress: EgressSettings,
}

/// What an organisation may have (S61).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Processors of one sandbox.
    pub max_cpus: u8,
    /// Memory of one sandbox.
    pub max_memory_mib: u32,
    /// Sandboxes at the same time.
    pub max_concurrent: u32,
}

/// What an organisation may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Paused sandboxes. They count apart from those that run.
    pub max_paused: u32,
    /// Snapshots by name.
    pub max_named: u32,
    /// How long a paused sandbox is kept (S35).
    pub retention: Duration,
}

impl Default for SnapshotLimits {
    /// 20 of each, for a week.
    fn default() -> Self {
        Self { max_paused: 20, max_named: 20, retention: Duration::from_secs(7 * 24 * 3600) }
    }
}

impl Default for TierLimits {
    /// The largest named size, 20 at a time.
    fn default() -> Self {
        let largest = Resources::of(domain::size::SizeClass::Large);
        Self { max_cpus: largest.cpus, max_memory_mib: largest.memory_mib, max_concurrent: 20 }
    }
}

/// What all sandboxes of an organisation may have together. None is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Processors.
    pub cpus: Option<u64>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// Writable layers in MiB.
    pub disk_mib: Option<u64>,
}

impl Settings {
    /// The modes that a sandbox can be given: without a gateway, none but `off`.
    pub(crate) fn offered(&self) -> Vec<EgressMode> {
        let modes = self.networks.iter().copied();
        modes.filter(|mode| *mode == EgressMode::Off || self.gateway.is_some()).collect()
    }

    /// What an organisation may have in all.
    pub(crate) fn quota(&self) -> Quota {
        let Totals { cpus, memory_mib, disk_mib } = self.totals;
        let sandboxes = Some(self.tier.max_concurrent.into());
        Quota { sandboxes, cpus, memory_mib, disk_mib }
    }

    /// The settings of an installation that demands machines and has no way out.
    pub fn new(region: Region) -> Self {
        Self {
            region,
            tier: TierLimits::default(),
            totals: Totals::default(),
            capacity: Capacity::default(),
            least_isolation: IsolationClass::Microvm,
            snapshots: SnapshotLimits::default(),
            pool: PoolSettings::default(),
            networks: vec![EgressMode::Off],
            gateway: None,
            egress: EgressSettings::default(),
        }
    }
}
