//! What the caller's organisation may have, and how much of it is in use (S81).

use std::time::Duration;

use domain::{
    caller::Caller,
    mode::EgressMode,
    region::Region,
    size::{Resources, SizeClass},
};

use crate::{
    Control,
    authority::{Action, Owner, may},
    control::detail,
    error::Error,
    sandboxes::request::Timeout,
};

/// The limits of an organisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Where sandboxes can be placed.
    pub regions: Vec<Region>,
    /// The named sizes that fit the tier.
    pub sizes: Vec<(SizeClass, Resources)>,
    /// Processors of one sandbox.
    pub max_cpus: u8,
    /// Memory of one sandbox.
    pub max_memory_mib: u32,
    /// The shortest time limit.
    pub min_timeout: Duration,
    /// The longest.
    pub max_timeout: Duration,
    /// The one that is used when none is given.
    pub default_timeout: Duration,
    /// What a sandbox may be allowed to reach.
    pub networks: Vec<EgressMode>,
    /// Sandboxes at the same time.
    pub max_concurrent: u32,
    /// How many there are.
    pub in_use: u32,
}

impl Control {
    /// Shows the limits.
    pub async fn limits(&self, caller: &Caller) -> Result<Limits, Error> {
        let action = Action::LimitsGet;
        let judged = async {
            let permit = may(caller, action, Owner::Caller)?;
            Ok((permit, self.store().count_live_sandboxes(&caller.organization).await?))
        };
        let judged = judged.await;
        let in_use = self.record(caller, action, None, detail([]), judged).await?;
        let settings = self.settings();
        let tier = settings.tier;
        let sizes = [SizeClass::Small, SizeClass::Medium, SizeClass::Large]
            .map(|size| (size, Resources::of(size)))
            .into_iter()
            .filter(|(_, resources)| {
                resources.cpus <= tier.max_cpus && resources.memory_mib <= tier.max_memory_mib
            })
            .collect();
        Ok(Limits {
            regions: vec![settings.region.clone()],
            sizes,
            max_cpus: tier.max_cpus,
            max_memory_mib: tier.max_memory_mib,
            min_timeout: Timeout::MIN,
            max_timeout: Timeout::MAX,
            default_timeout: Timeout::default().get(),
            networks: settings.offered(),
            max_concurrent: tier.max_concurrent,
            in_use,
        })
    }
}
