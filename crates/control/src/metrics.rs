//! How busy sandboxes are, and the installation.
//!
//! A sandbox is measured from two sides. What it takes of the host is the host's
//! own observation. How full it is inside is what its guest says, and no more is
//! believed of that than that it is a number. Samples are kept in memory for ten
//! minutes and are gone with the sandbox or the server.
//!
//! To look is no use of a sandbox: it keeps none awake, and leaves no line on
//! the audit log when it is allowed.

mod samples;

use std::time::Duration;

use domain::{caller::Caller, id::SandboxId, phase::Phase};
pub use sandbox::gauge::Inside;
use sandbox::gauge::Room;
use tokio::task::JoinSet;

pub use self::samples::Sample;
pub(crate) use self::samples::Samples;
use crate::{
    Control,
    admission::{Capacity, Sum},
    authority::{Action, Owner, may},
    control::detail,
    error::Error,
    sandboxes::running,
};

/// Between two rounds over all sandboxes.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// How many are measured at once.
const AT_ONCE: usize = 8;
/// How old a sample may be to be an answer.
const FRESH: Duration = Duration::from_secs(1);

/// The installation in numbers.
#[derive(Clone, Debug)]
pub struct Overview {
    /// How many sandboxes there are in each phase that is not final.
    pub phases: Vec<(Phase, u64)>,
    /// What those with a machine were promised.
    pub promised: Sum,
    /// What the host has and has left.
    pub room: Room,
    /// How much of it may be promised.
    pub capacity: Capacity,
    /// Memory that machines take, by the last samples.
    pub memory_bytes: u64,
    /// Processor time that sandboxes took since this process began.
    pub cpu_us: u64,
    /// Requests for a sandbox that were refused for want of quota.
    pub refused_quota: u64,
    /// The same for want of room on the host.
    pub refused_host: u64,
}

impl Control {
    /// The samples of a running sandbox, oldest first; the last one is of now.
    pub async fn metrics(&self, caller: &Caller, id: &SandboxId) -> Result<Vec<Sample>, Error> {
        let action = Action::GuestLook;
        let judged = self.judge_sandbox(caller, action, id).await;
        if let Err(error) = judged.and_then(|(_, row)| running(row)) {
            return Err(self.refuse(caller, action, Some(id.as_str()), detail([]), error).await);
        }
        if !self.samples().is_fresh(id, self.now(), FRESH) {
            self.measure(id).await;
        }
        Ok(self.samples().of(id))
    }

    /// The installation in numbers, for its operator.
    pub async fn overview(&self, caller: &Caller) -> Result<Overview, Error> {
        let action = Action::MetricsRead;
        if let Err(denied) = may(caller, action, Owner::Caller) {
            return Err(self.refuse(caller, action, None, detail([]), denied.into()).await);
        }
        let usage = self.store().usage().await?;
        let phases = Phase::ALL.into_iter().filter(|phase| !phase.is_final()).map(|phase| {
            let these = usage.iter().filter(|sum| sum.phase == phase);
            (phase, these.map(|sum| u64::from(sum.sandboxes)).sum())
        });
        let (memory_bytes, cpu_us) = self.samples().total();
        let (refused_quota, refused_host) = self.gate().refused();
        Ok(Overview {
            phases: phases.collect(),
            promised: Sum::over(&usage),
            room: self.room().await?,
            capacity: self.settings().capacity,
            memory_bytes,
            cpu_us,
            refused_quota,
            refused_host,
        })
    }

    /// Measures every running sandbox, again and again. Whoever calls it ends it.
    pub async fn keep_measuring(&self) {
        let mut rounds = tokio::time::interval(INTERVAL);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let live = match self.store().live_sandboxes().await {
                Ok(live) => live,
                Err(error) => {
                    tracing::warn!(%error, "sandboxes were not measured");
                    continue;
                }
            };
            let running = live.into_iter().filter(|row| row.phase == Phase::Running);
            let ids: Vec<_> = running.map(|row| row.id).collect();
            self.samples().keep_only(&ids);
            let mut measuring = JoinSet::new();
            for id in ids {
                while measuring.len() >= AT_ONCE {
                    measuring.join_next().await;
                }
                let control = self.clone();
                measuring.spawn(async move { control.measure(&id).await });
            }
            measuring.join_all().await;
        }
    }

    async fn measure(&self, id: &SandboxId) {
        let (taken, inside) = tokio::join!(self.host().taken(id), self.host().inside(id));
        let taken = taken.inspect_err(|error| {
            tracing::debug!(sandbox.id = %id, %error, "what a sandbox takes is not known");
        });
        self.samples().add(id, self.now(), taken.ok(), inside);
    }
}
