//! Whether another sandbox has a place: of its organisation, and on the host.
//!
//! [`admit`] decides and reads nothing. Two promises are kept apart. What an
//! organisation may have is its quota, and more is refused until it ends
//! something of its own. What the host can hold is what it has, times how often
//! the operator lets it be promised, and never what it does not have at this
//! moment; more is refused until anybody ends something.
//!
//! Memory and disk of a sandbox come from one sum, so the disk that the host is
//! asked for is what it keeps free for templates and snapshots.
//!
//! Invariant: what is admitted counts before the next one is looked at. That is
//! what [`Place`] is for: it is held until the row is there.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use domain::{id::OrganizationId, size::Resources};
use sandbox::gauge::Room;
use store::usage::Usage;
use tokio::sync::{Mutex, MutexGuard};

use crate::{Control, error::Error};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Sandboxes that have a machine.
    Sandboxes,
    /// Their processors.
    Cpus,
    /// Their memory in MiB.
    Memory,
    /// Their disk in MiB.
    Disk,
}

/// What an organisation may have in all. None is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Sandboxes at the same time.
    pub sandboxes: Option<u64>,
    /// Processors of all of them.
    pub cpus: Option<u64>,
    /// Memory of all of them in MiB.
    pub memory_mib: Option<u64>,
    /// Writable layers of all of them in MiB.
    pub disk_mib: Option<u64>,
}

/// How much of the host may be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sandboxes at the same time.
    pub sandboxes: u64,
    /// Processors, in hundredths of those there are.
    pub cpu_percent: u64,
    /// Memory, in hundredths of what there is.
    pub memory_percent: u64,
    /// Memory that is to stay available when one more has all of its own, in MiB.
    pub memory_reserve_mib: u64,
    /// Disk that is to stay free, in MiB.
    pub disk_reserve_mib: u64,
}

/// What is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sandboxes that have a machine.
    pub sandboxes: u64,
    /// Their processors.
    pub cpus: u64,
    /// Their memory.
    pub memory_mib: u64,
    /// Their writable layers.
    pub disk_mib: u64,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The organisation has as much as it may.
    Quota {
        /// Of what.
        of: Counted,
        /// How much it may have.
        limit: u64,
        /// How much it has.
        in_use: u64,
    },
    /// The host has no more to give.
    Host {
        /// Of what.
        of: Counted,
    },
}

/// A place that was found free. Nobody else is given one while it is held.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    _turn: MutexGuard<'a, ()>,
}

/// Whose turn it is, and how many were turned away.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    turn: Mutex<()>,
    refused_quota: AtomicU64,
    refused_host: AtomicU64,
}

/// Decides whether `copies` sandboxes of these resources have a place.
pub fn admit(
    (asked, copies): (&Resources, u32),
    (quota, of_organization): (&Quota, &Sum),
    (capacity, of_host, room): (&Capacity, &Sum, &Room),
) -> Result<(), Full> {
    let asked = Sum::of(asked, copies);
    let counted = |of| (of, asked.of_what(of), of_organization.of_what(of), quota.of_what(of));
    for (of, more, in_use, limit) in Counted::ALL.map(counted) {
        if let Some(limit) = limit
            && in_use.saturating_add(more) > limit
        {
            return Err(Full::Quota { of, limit, in_use });
        }
    }
    let share = |of_host: u64, percent: u64| {
        u64::try_from(u128::from(of_host) * u128::from(percent) / 100).unwrap_or(u64::MAX)
    };
    let promisable = |of| match of {
        Counted::Sandboxes => capacity.sandboxes,
        Counted::Cpus => share(room.cpus.into(), capacity.cpu_percent),
        Counted::Memory => share(room.memory_mib, capacity.memory_percent),
        Counted::Disk => u64::MAX,
    };
    for of in Counted::ALL {
        if of_host.of_what(of).saturating_add(asked.of_what(of)) > promisable(of) {
            return Err(Full::Host { of });
        }
    }
    // Of several copies, each takes what it is given over time. One at least
    // must have all of it now.
    let memory_now = asked.memory_mib.checked_div(u64::from(copies)).unwrap_or(0);
    if room.available_mib < memory_now.saturating_add(capacity.memory_reserve_mib) {
        return Err(Full::Host { of: Counted::Memory });
    }
    if room.disk_mib < capacity.disk_reserve_mib {
        return Err(Full::Host { of: Counted::Disk });
    }
    Ok(())
}

impl Control {
    /// Finds a place for `copies` sandboxes, which has to be taken while it is
    /// held.
    pub(crate) async fn place(
        &self,
        organization: &OrganizationId,
        resources: &Resources,
        copies: u32,
    ) -> Result<Place<'_>, Error> {
        let gate = self.gate();
        let turn = gate.turn.lock().await;
        let usage = self.store().usage().await?;
        let room = self.room().await?;
        let own = Sum::over(usage.iter().filter(|sum| sum.organization == *organization));
        let settings = self.settings();
        let admitted = admit(
            (resources, copies),
            (&settings.quota(), &own),
            (&settings.capacity, &Sum::over(&usage), &room),
        );
        match admitted {
            Ok(()) => Ok(Place { _turn: turn }),
            Err(full) => {
                let counter = match full {
                    Full::Quota { .. } => &gate.refused_quota,
                    Full::Host { .. } => &gate.refused_host,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                Err(full.into())
            }
        }
    }

    /// What the host has and has left.
    pub(crate) async fn room(&self) -> Result<Room, Error> {
        self.host().room().await.map_err(|error| Error::Unavailable {
            detail: "the host cannot be measured; try again",
            source: Some(Box::new(error)),
        })
    }
}

impl Gate {
    /// How many were turned away, for want of quota and of room.
    pub(crate) fn refused(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.refused_quota), read(&self.refused_host))
    }
}

impl Counted {
    const ALL: [Self; 4] = [Self::Sandboxes, Self::Cpus, Self::Memory, Self::Disk];
}

impl Sum {
    fn of(one: &Resources, copies: u32) -> Self {
        let copies = u64::from(copies);
        Self {
            sandboxes: copies,
            cpus: u64::from(one.cpus) * copies,
            memory_mib: u64::from(one.memory_mib) * copies,
            disk_mib: u64::from(one.disk_mib) * copies,
        }
    }

    /// Over those that have a machine, or are about to.
    pub(crate) fn over<'a>(usage: impl IntoIterator<Item = &'a Usage>) -> Self {
        let placed = usage.into_iter().filter(|usage| usage.placed);
        placed.fold(Self::default(), |sum, usage| Self {
            sandboxes: sum.sandboxes.saturating_add(usage.sandboxes.into()),
            cpus: sum.cpus.saturating_add(usage.cpus),
            memory_mib: sum.memory_mib.saturating_add(usage.memory_mib),
            disk_mib: sum.disk_mib.saturating_add(usage.disk_mib),
        })
    }

    fn of_what(&self, of: Counted) -> u64 {
        match of {
            Counted::Sandboxes => self.sandboxes,
            Counted::Cpus => self.cpus,
            Counted::Memory => self.memory_mib,
            Counted::Disk => self.disk_mib,
        }
    }
}

impl Quota {
    fn of_what(&self, of: Counted) -> Option<u64> {
        match of {
            Counted::Sandboxes => self.sandboxes,
            Counted::Cpus => self.cpus,
            Counted::Memory => self.memory_mib,
            Counted::Disk => self.disk_mib,
        }
    }
}

impl Default for Capacity {
    /// Most sandboxes wait most of the time, and take little while they do.
    fn default() -> Self {
        Self {
            sandboxes: 1000,
            cpu_percent: 6400,
            memory_percent: 400,
            memory_reserve_mib: 512,
            disk_reserve_mib: 1024,
        }
    }
}

impl From<Full> for Error {
    fn from(full: Full) -> Self {
        match full {
            Full::Quota { of, limit, in_use } => Self::QuotaExceeded { of, limit, in_use },
            Full::Host { of } => Self::HostFull { of },
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandboxes => "sandboxes",
            Self::Cpus => "processors",
            Self::Memory => "MiB of memory",
            Self::Disk => "MiB of disk",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 processors, 1000 MiB; an organisation with room for anything; a host of
    /// 4 processors and 4000 MiB that is promised twice.
    struct Case {
        copies: u32,
        quota: Quota,
        own: Sum,
        capacity: Capacity,
        host: Sum,
        room: Room,
    }

    const ONE: Resources = Resources { cpus: 2, memory_mib: 1000, disk_mib: 300, processes: 9 };

    impl Case {
        fn decided(&self) -> Result<(), Full> {
            admit(
                (&ONE, self.copies),
                (&self.quota, &self.own),
                (&self.capacity, &self.host, &self.room),
            )
        }
    }

    fn case() -> Case {
        Case {
            copies: 1,
            quota: Quota::default(),
            own: Sum::default(),
            capacity: Capacity {
                sandboxes: 10,
                cpu_percent: 200,
                memory_percent: 200,
                memory_reserve_mib: 100,
                disk_reserve_mib: 50,
            },
            host: Sum::default(),
            room: Room { cpus: 4, memory_mib: 4000, available_mib: 1100, disk_mib: 50 },
        }
    }

    fn sum(sandboxes: u64, cpus: u64, memory_mib: u64, disk_mib: u64) -> Sum {
        Sum { sandboxes, cpus, memory_mib, disk_mib }
    }

    /// S14, S61, U19: exactly up to each bound, and not one more.
    #[test]
    fn each_bound_holds_exactly() {
        let full = |of| Err(Full::Host { of });
        let spent = |of, limit, in_use| Err(Full::Quota { of, limit, in_use });
        let bounded = |sandboxes, cpus, memory_mib, disk_mib| Quota {
            sandboxes: Some(sandboxes),
            cpus: Some(cpus),
            memory_mib: Some(memory_mib),
            disk_mib: Some(disk_mib),
        };
        let own = sum(3, 6, 3000, 900);
        let table: [(&str, Case, Result<(), Full>); 17] = [
            ("all free", case(), Ok(())),
            ("quota just fits", Case { quota: bounded(4, 8, 4000, 1200), own, ..case() }, Ok(())),
            (
                "count",
                Case { quota: bounded(3, 8, 4000, 1200), own, ..case() },
                spent(Counted::Sandboxes, 3, 3),
            ),
            (
                "cpus",
                Case { quota: bounded(4, 7, 4000, 1200), own, ..case() },
                spent(Counted::Cpus, 7, 6),
            ),
            (
                "memory",
                Case { quota: bounded(4, 8, 3999, 1200), own, ..case() },
                spent(Counted::Memory, 3999, 3000),
            ),
            (
                "disk",
                Case { quota: bounded(4, 8, 4000, 1199), own, ..case() },
                spent(Counted::Disk, 1199, 900),
            ),
            (
                "copies of a quota",
                Case { copies: 2, quota: bounded(4, 99, 9999, 9999), own, ..case() },
                spent(Counted::Sandboxes, 4, 3),
            ),
            ("host just fits", Case { host: sum(9, 6, 7000, 9999), ..case() }, Ok(())),
            ("host count", Case { host: sum(10, 0, 0, 0), ..case() }, full(Counted::Sandboxes)),
            ("host cpus", Case { host: sum(1, 7, 0, 0), ..case() }, full(Counted::Cpus)),
            ("host memory", Case { host: sum(1, 1, 7001, 0), ..case() }, full(Counted::Memory)),
            (
                "host copies",
                Case { copies: 4, host: sum(0, 1, 0, 0), ..case() },
                full(Counted::Cpus),
            ),
            ("copies fit", Case { copies: 4, ..case() }, Ok(())),
            (
                "memory now",
                Case { room: Room { available_mib: 1099, ..case().room }, ..case() },
                full(Counted::Memory),
            ),
            (
                "disk now",
                Case { room: Room { disk_mib: 49, ..case().room }, ..case() },
                full(Counted::Disk),
            ),
            (
                "quota comes first",
                Case { quota: bounded(0, 0, 0, 0), host: sum(99, 0, 0, 0), ..case() },
                spent(Counted::Sandboxes, 0, 0),
            ),
            (
                "no bound",
                Case { room: Room::UNBOUNDED, host: sum(1, 99, 99_999, 0), ..case() },
                Ok(()),
            ),
        ];
        for (name, case, expected) in table {
            assert_eq!(case.decided(), expected, "{name}");
        }
    }

    #[test]
    fn those_without_a_machine_take_no_place() {
        let usage = |placed, sandboxes| Usage {
            organization: OrganizationId::from_random([1; 16]),
            phase: domain::phase::Phase::Paused,
            placed,
            sandboxes,
            cpus: 1,
            memory_mib: 1,
            disk_mib: 1,
        };
        let all = [usage(true, 2), usage(false, 5), usage(true, 3)];
        assert_eq!(Sum::over(&all), sum(5, 2, 2, 2));
    }

    #[test]
    fn numbers_at_their_end_do_not_wrap() {
        let case = Case {
            copies: u32::MAX,
            own: sum(u64::MAX, u64::MAX, u64::MAX, u64::MAX),
            host: sum(u64::MAX, u64::MAX, u64::MAX, u64::MAX),
            quota: Quota { sandboxes: Some(u64::MAX), ..Quota::default() },
            ..case()
        };
        assert_eq!(case.decided(), Err(Full::Host { of: Counted::Sandboxes }));
    }
}
