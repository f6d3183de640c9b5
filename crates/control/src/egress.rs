//! What sandboxes may reach: setting it, asking what would happen, reading what
//! did.
//!
//! A mode and its list change together, by compare-and-set on a number of their
//! own, with an audit line in the same transaction. Then the gateway is handed
//! the new rules, which is what enforces them, and last the guest is told, which
//! is a convenience for the programs inside.
//!
//! An owner may always narrow a mode. What it may be widened to is the
//! operator's setting; `open` is in it only if the operator put it there (U3, U4).

mod journal;
mod log;
mod rules;

use std::fmt;

use async_trait::async_trait;
use domain::{caller::Caller, id::SandboxId, image::Image, mode::EgressMode, phase::Phase};
use gateway::{
    address::Own,
    decide::{self, Explanation},
    presets,
    rules::{Exception, Rules, Upstream},
};
use store::{
    egress::Egress,
    sandboxes::{Moved, Sandbox},
};

pub use self::{
    journal::{StoreJournal, Writer},
    log::{EgressLine, EgressQuery, Follow},
    rules::StoreRules,
};
use crate::{
    Control,
    authority::{Action, Owner, may},
    control::{Detail, detail},
    error::{ConflictCode, Error},
    sandboxes::from_host,
};

/// How often a change is tried against changes of others.
const TRIES: u32 = 4;

/// The gateway, as the use cases see it.
#[async_trait]
pub trait Gateway: fmt::Debug + Send + Sync {
    /// Whether it takes streams now.
    fn ready(&self) -> bool;

    /// Hands it rules. It keeps those of the highest generation, and rules that
    /// it does not get are asked for before it lets anything out.
    async fn publish(&self, rules: Rules);

    /// Tells it that a sandbox has ended.
    async fn forget(&self, sandbox: &SandboxId);
}

/// What the operator opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressSettings {
    /// What named paths lead to.
    pub upstreams: Vec<Upstream>,
    /// Internal destinations that may be reached all the same.
    pub exceptions: Vec<Exception>,
}

/// What a sandbox is to reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// How much.
    pub mode: EgressMode,
    /// In `restricted`, which destinations: entries and presets. Without it, the
    /// curated list.
    pub allow: Option<Vec<String>>,
}

/// A question about what would happen.
#[derive(Clone, Debug)]
pub struct Explain {
    /// Whereto.
    pub url: String,
    /// Under whose rules.
    pub rules: ExplainRules,
}

/// Which rules a question is about.
#[derive(Clone, Debug)]
pub enum ExplainRules {
    /// Those of a sandbox, for one of its accounts.
    Sandbox {
        /// Which one.
        id: SandboxId,
        /// The account; the ordinary one if absent.
        uid: Option<u32>,
    },
    /// Those that a new sandbox would have, from an image of this name.
    New(Network),
}

/// The account that programs run as unless asked otherwise.
const ORDINARY: u32 = 1000;

impl Control {
    /// Changes what a live sandbox may reach. It holds for connections that exist:
    /// those that the new rules do not permit end.
    pub async fn set_egress(
        &self,
        caller: &Caller,
        id: &SandboxId,
        network: Network,
    ) -> Result<Sandbox, Error> {
        let action = Action::EgressSet;
        let object = Some(id.as_str());
        let told = || describe(&network);
        for _ in 0..TRIES {
            let judged = self.judge_set(caller, id, &network).await;
            let (permit, row, egress) = match judged {
                Ok(judged) => judged,
                Err(error) => return Err(self.refuse(caller, action, object, told(), error).await),
            };
            let mut told = told();
            told.insert("from".to_owned(), row.network.as_str().into());
            told.insert("generation".to_owned(), egress.generation.into());
            let line = self.allowed(caller, permit, object, told);
            let was = row.egress.generation;
            match self.store().set_egress(id, was, network.mode, &egress, &line).await? {
                Moved::Yes => {
                    self.publish(id).await?;
                    self.tell_network(id).await?;
                    let row = self.store().sandbox(id).await?;
                    return row.ok_or(Error::NotFound { noun: "sandbox" });
                }
                // Somebody else changed it, or it ends: judge again.
                Moved::No => continue,
            }
        }
        let error = Error::Conflict {
            code: ConflictCode::Changed,
            detail: "others change the rules of this sandbox; look at them and try again".into(),
        };
        Err(self.refuse(caller, action, object, told(), error).await)
    }

    async fn judge_set(
        &self,
        caller: &Caller,
        id: &SandboxId,
        network: &Network,
    ) -> Result<(crate::authority::Permit, Sandbox, Egress), Error> {
        let (permit, row) = self.judge_sandbox(caller, Action::EgressSet, id).await?;
        if row.phase.is_final() || row.intent.is_some() {
            return Err(Error::not_running("the sandbox has ended or is about to"));
        }
        // Narrowing needs no permission, and no gateway.
        if network.mode > row.network {
            self.available(network.mode)?;
        }
        let image = self.images().verified(&image_name(&row)?).await;
        let image = image.ok().filter(|image| image.digest == row.image);
        let mut egress = listed(network, image.as_ref())?;
        egress.generation = row.egress.generation + 1;
        Ok((permit, row, egress))
    }

    /// Whether a sandbox may be given a mode here and now.
    pub(crate) fn available(&self, mode: EgressMode) -> Result<(), Error> {
        let settings = self.settings();
        if !settings.networks.contains(&mode) {
            return Err(Error::ModeUnavailable { mode });
        }
        match &settings.gateway {
            _ if mode == EgressMode::Off => Ok(()),
            Some(gateway) if gateway.ready() => Ok(()),
            Some(_) => Err(Error::NoGateway { detail: "the gateway does not run now; try again" }),
            None => Err(Error::NoGateway {
                detail: "this server has no gateway, so nothing but mode off is possible",
            }),
        }
    }

    /// What a new sandbox may reach.
    pub(crate) fn agreed(&self, network: &Network, image: &Image) -> Result<Egress, Error> {
        self.available(network.mode)?;
        listed(network, Some(image))
    }

    /// Hands the gateway the rules of a sandbox as they are on record.
    pub(crate) async fn publish(&self, id: &SandboxId) -> Result<(), Error> {
        let Some(gateway) = &self.settings().gateway else { return Ok(()) };
        let rules = StoreRules::new(self.store().clone(), self.settings().egress.clone());
        match rules.of(id).await? {
            Some(rules) => gateway.publish(rules).await,
            None => gateway.forget(id).await,
        }
        Ok(())
    }

    /// Tells a running guest what its network looks like.
    pub(crate) async fn tell_network(&self, id: &SandboxId) -> Result<(), Error> {
        match self.store().sandbox(id).await? {
            Some(row) if row.phase == Phase::Running => {
                self.host().set_network(id, row.network).await.map_err(from_host)
            }
            _ => Ok(()),
        }
    }

    /// Tells a guest that slept: its mode may have changed meanwhile. The gateway
    /// knows, so nobody waits for this.
    pub(crate) fn tell_again(&self, id: &SandboxId) {
        let (control, id) = (self.clone(), id.clone());
        self.tasks().spawn(async move {
            if let Err(error) = control.tell_network(&id).await {
                tracing::warn!(sandbox.id = %id, %error, "a guest was not told of its network");
            }
        });
    }

    /// Says what would happen to a URL, by which rule. Nothing is sent, and no
    /// name is looked up.
    pub async fn explain_egress(
        &self,
        caller: &Caller,
        explain: Explain,
    ) -> Result<Explanation, Error> {
        let action = Action::EgressExplain;
        let object = match &explain.rules {
            ExplainRules::Sandbox { id, .. } => Some(id.as_str()),
            ExplainRules::New(_) => None,
        };
        let judged = self.judge_explain(caller, action, &explain).await;
        let (rules, uid) = self.record(caller, action, object, detail([]), judged).await?;
        let own =
            Own::of_this_host().map_err(|error| Error::Internal { source: Box::new(error) })?;
        Ok(decide::explain(&rules, Some(uid), &explain.url, &own))
    }

    async fn judge_explain(
        &self,
        caller: &Caller,
        action: Action,
        explain: &Explain,
    ) -> Result<(crate::authority::Permit, (Rules, u32)), Error> {
        if explain.url.len() > 2048 {
            return Err(Error::invalid("url", "at most 2048 bytes"));
        }
        match &explain.rules {
            ExplainRules::Sandbox { id, uid } => {
                let (permit, row) = self.judge_sandbox(caller, action, id).await?;
                let sessions = self.store().sessions(id).await?;
                let rules = rules::made(&row, &sessions, &self.settings().egress);
                Ok((permit, (rules, uid.unwrap_or(ORDINARY))))
            }
            ExplainRules::New(network) => {
                let permit = may(caller, action, Owner::Caller)?;
                let base = "base".parse().ok();
                let image = match base {
                    Some(name) => self.images().verified(&name).await.ok(),
                    None => None,
                };
                let id = SandboxId::from_random(self.random());
                let mut rules = Rules::off(id, 1);
                rules.mode = network.mode;
                rules.allow = listed(network, image.as_ref())?.entries;
                rules.upstreams = self.settings().egress.upstreams.clone();
                rules.exceptions = self.settings().egress.exceptions.clone();
                Ok((permit, (rules, ORDINARY)))
            }
        }
    }
}

/// The list of a mode, with presets written out.
fn listed(network: &Network, image: Option<&Image>) -> Result<Egress, Error> {
    let allow = match (&network.allow, network.mode) {
        (Some(list), EgressMode::Restricted) => list.clone(),
        (None, EgressMode::Restricted) => presets::DEFAULT.map(str::to_owned).to_vec(),
        (None, _) => Vec::new(),
        (Some(_), _) => {
            return Err(Error::invalid("allow", "only mode restricted has a list"));
        }
    };
    let registries = image.map(|image| image.manifest.egress_registries.as_slice());
    let entries = presets::expand(&allow, registries.unwrap_or_default())
        .map_err(|error| Error::invalid("allow", error))?;
    // Without its image, nobody knows which registries its clients use.
    if image.is_none() && allow.iter().any(|item| item == "preset:packages") {
        let detail = "the image of this sandbox is not installed any more; \
                      name the hosts instead of preset:packages";
        return Err(Error::invalid("allow", detail));
    }
    Ok(Egress { allow, entries, ..Egress::default() })
}

fn image_name(row: &Sandbox) -> Result<domain::image::ImageName, Error> {
    let unknown = |_| Error::Internal { source: "a template that is no image".into() };
    row.template.as_str().parse().map_err(unknown)
}

fn describe(network: &Network) -> Detail {
    let mut told = detail([("network", network.mode.as_str().into())]);
    if let Some(allow) = &network.allow {
        told.insert("allow".to_owned(), crate::control::clipped(&allow.join(" ")));
    }
    told
}
