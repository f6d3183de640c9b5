//! Making a sandbox.
//!
//! ```text
//!  judge ──► record row + line ──► task: host starts it ──► time limit begins
//!              (one transaction,        │
//!               counts the quota)       └──► whoever asked waits for the task
//! ```
//!
//! What must hold: the task is ours, so a client that hangs up leaves a sandbox
//! that is on record, has a time limit, and is listed for its owner. The same
//! request with the same key finds the first one's row and waits for the same
//! task, so it makes nothing.

use std::time::Duration;

use domain::{
    caller::Caller,
    ending::{Cause, Ending},
    id::{Alias, SandboxId, SnapshotId},
    image::Image,
    mode::EgressMode,
    phase::Phase,
    size::{Resources, SizeClass},
    snapshot::OnTimeout,
    template::TemplateName,
    time::Timestamp,
};
use sandbox::spec::{Personality, SandboxSpec, Source};
use store::sandboxes::{Added, Sandbox, rest::Rest};

use crate::{
    Control,
    authority::{Action, Owner, Permit, may},
    control::{Detail, detail},
    error::{ConflictCode, Error},
    fingerprint::fingerprint,
    ledger::StoreLedger,
    sandboxes::{
        NewSandbox,
        request::{IdleTimeout, SizeChoice},
    },
    snapshots::{SnapshotState, not_ready},
    templates::Foundation,
};

/// The time limit of a start, on top of that of the sandbox. The driver has
/// tighter bounds for every step; this one holds even if a step forgets its own.
pub(super) const START_ALLOWANCE: Duration = Duration::from_secs(900);
/// How long a pause at the time limit is tried before the sandbox ends after all.
const PAUSE_ALLOWANCE: Duration = Duration::from_secs(3600);
/// How long the removal of a failed start is waited for.
const REMOVAL: Duration = Duration::from_secs(75);

/// What a sandbox starts from, found and checked.
struct Origin {
    /// The id of a machine that is ready, or a new one.
    id: SandboxId,
    /// Whether it is that of a machine.
    claimed: bool,
    image: Image,
    source: Source,
    template: TemplateName,
    size: Option<SizeClass>,
    resources: Resources,
    parent: Option<SnapshotId>,
}

impl Control {
    /// Makes a sandbox and returns when it runs.
    pub async fn create_sandbox(&self, caller: &Caller, new: NewSandbox) -> Result<Sandbox, Error> {
        let action = Action::SandboxCreate;
        let told = describe(&new);
        let (permit, image, source, row, claimed) = match self.judge_create(caller, &new).await {
            Ok(judged) => judged,
            Err(error) => return Err(self.refuse(caller, action, None, told, error).await),
        };
        let object = Some(row.id.as_str());
        let line = self.allowed(caller, permit, object, told.clone());
        let fingerprint = fingerprint(caller, &new, &row);
        let most = self.settings().tier.max_concurrent;

        // Before the row is there, so that whoever finds it finds the start too.
        let start = self.starts().begin(row.id.clone());
        let place = match self.place(&row.organization, &row.resources, 1).await {
            Ok(place) => Some(place),
            Err(full) => match self.store().sandbox_of_key(&fingerprint).await {
                // A repeated request needs no place.
                Ok(Some(_)) => None,
                found => {
                    if claimed {
                        self.unmake(&row.id).await;
                    }
                    let error = found.map_or_else(Error::from, |_| full);
                    return Err(self.refuse(caller, action, None, told, error).await);
                }
            },
        };
        let added = self.store().add_sandbox(&row, &fingerprint, most, &line).await;
        drop(place);
        if claimed && !matches!(added, Ok(Added::New)) {
            // The machine was claimed for a sandbox that is not made.
            self.unmake(&row.id).await;
        }
        let refusal = match added? {
            Added::New => {
                let id = row.id.clone();
                let spec =
                    SandboxSpec { image, resources: row.resources, source, disks: Vec::new() };
                let personality = Personality {
                    environment: new.environment,
                    network: row.network,
                    ..Personality::default()
                };
                let (control, caller) = (self.clone(), caller.clone());
                self.tasks().spawn(async move {
                    control.start(&row, spec, personality).await;
                    control.attach_first(&caller, &row.id, new.volumes).await;
                    drop(start);
                });
                return self.started(&id).await;
            }
            Added::Repeated(first) => {
                drop(start);
                let mut told = told;
                told.insert("repeated".to_owned(), true.into());
                let judged = Ok((permit, ()));
                self.record(caller, action, Some(first.id.as_str()), told, judged).await?;
                return self.started(&first.id).await;
            }
            Added::KeyReused => Error::Conflict {
                code: ConflictCode::IdempotencyKeyReused,
                detail: "the idempotency key was used for a different request".to_owned(),
            },
            Added::Full { in_use } => Error::no_more_sandboxes(most, in_use),
        };
        Err(self.refuse(caller, action, None, told, refusal).await)
    }

    /// Decides, and says what is to be made.
    async fn judge_create(
        &self,
        caller: &Caller,
        new: &NewSandbox,
    ) -> Result<(Permit, Image, Source, Sandbox, bool), Error> {
        let permit = may(caller, Action::SandboxCreate, Owner::Caller)?;
        let settings = self.settings();
        self.available(new.network.mode)?;
        if let Some(region) = &new.region
            && *region != settings.region
        {
            let here = format!("this installation is in region {}", settings.region);
            return Err(Error::invalid("region", here));
        }
        let origin = self.origin(caller, new).await?;
        self.judge_mounts(caller, &new.volumes, new.idempotency_key.is_some()).await?;
        let row = Sandbox {
            id: origin.id,
            alias: Alias::from_random(self.random()),
            organization: caller.organization.clone(),
            owner: caller.user.clone(),
            region: settings.region.clone(),
            template: origin.template,
            image: origin.image.digest,
            size: origin.size,
            resources: origin.resources,
            network: new.network.mode,
            egress: self.agreed(&new.network, &origin.image)?,
            phase: Phase::Provisioning,
            intent: None,
            ending: None,
            metadata: new.metadata.get().clone(),
            timeout: new.timeout.get(),
            created: self.now(),
            started: None,
            ended: None,
            expires: None,
            rest: Rest {
                on_timeout: new.on_timeout,
                idle: new.idle.map(IdleTimeout::get),
                auto_resume: new.auto_resume,
                ..Rest::default()
            },
            parent: origin.parent,
            generation: 0,
        };
        Ok((permit, origin.image, origin.source, row, origin.claimed))
    }

    /// What it starts from: a template, or a snapshot of the organisation.
    async fn origin(&self, caller: &Caller, new: &NewSandbox) -> Result<Origin, Error> {
        let tier = &self.settings().tier;
        let Some(which) = &new.snapshot else {
            return self.of_template(caller, new).await;
        };
        let found = self.find_snapshot(&caller.organization, which).await?;
        let own = found.filter(|snapshot| snapshot.organization == caller.organization);
        let snapshot = own.ok_or(Error::NotFound { noun: "snapshot" })?;
        if snapshot.state != SnapshotState::Ready {
            return Err(not_ready(&snapshot));
        }
        let resources = snapshot.resources;
        if resources.cpus > tier.max_cpus || resources.memory_mib > tier.max_memory_mib {
            let detail = "a sandbox of the snapshot's size is larger than is allowed here";
            return Err(Error::invalid("snapshot", detail));
        }
        Ok(Origin {
            claimed: false,
            id: SandboxId::from_random(self.random()),
            image: self.image_of(&snapshot.template, snapshot.image).await?,
            source: Source::Snapshot(self.opened(&snapshot).await?),
            resources,
            template: snapshot.template,
            size: snapshot.size,
            parent: Some(snapshot.id),
        })
    }

    /// What a template stands for: an image, or a machine that was captured.
    async fn of_template(&self, caller: &Caller, new: &NewSandbox) -> Result<Origin, Error> {
        let tier = &self.settings().tier;
        match self.foundation(&caller.organization, &new.template).await? {
            Foundation::Image(image) => {
                let resources = new.size.resources(tier)?;
                let ready = self.pool().claim(image.digest, resources);
                Ok(Origin {
                    claimed: ready.is_some(),
                    id: ready.unwrap_or_else(|| SandboxId::from_random(self.random())),
                    image: *image,
                    source: Source::Template,
                    template: new.template.clone(),
                    resources,
                    size: new.size.class(),
                    parent: None,
                })
            }
            Foundation::Template(template, image) => {
                let resources = template.resources;
                let given = new.size != SizeChoice::Class(SizeClass::default());
                if given && new.size.resources(tier)? != resources {
                    let name = &template.name;
                    let own = format!("template {name} has a size of its own; leave the size out");
                    return Err(Error::invalid("size", own));
                }
                if resources.cpus > tier.max_cpus || resources.memory_mib > tier.max_memory_mib {
                    let large = "the template's size is larger than is allowed here";
                    return Err(Error::invalid("template", large));
                }
                let source = self.loadable(&template.snapshot).await?.ok_or_else(|| {
                    let name = &template.name;
                    let why =
                        format!("template {name} was made on another version; build it again");
                    Error::conflict(ConflictCode::TemplateOutdated, why)
                })?;
                Ok(Origin {
                    claimed: false,
                    id: SandboxId::from_random(self.random()),
                    image: *image,
                    source: Source::Snapshot(source),
                    template: template.name,
                    resources,
                    size: template.size,
                    parent: Some(template.snapshot),
                })
            }
        }
    }

    /// Starts what is on record. Owned by the tracker, not by a request.
    pub(crate) async fn start(&self, row: &Sandbox, spec: SandboxSpec, personality: Personality) {
        let id = &row.id;
        let latest = self.now().plus(START_ALLOWANCE).plus(row.timeout);
        // The gateway asks for rules that it was not handed, so this only saves
        // the first request the wait.
        if row.network != EgressMode::Off
            && let Err(error) = self.publish(id).await
        {
            tracing::warn!(sandbox.id = %id, %error, "the gateway was not handed the rules");
        }
        let started = self.host().start(id.clone(), spec, personality, Some(latest)).await;
        let done = match started {
            Ok(()) => self.pass_on_deadline(id).await,
            Err(ending) => self.settle(id, &ending).await,
        };
        if let Err(error) = done {
            tracing::error!(
                sandbox.id = %id,
                error = &error as &dyn std::error::Error,
                "a start was not followed up",
            );
        }
    }

    /// Tells the host the time limit that began when the sandbox ran.
    pub(super) async fn pass_on_deadline(&self, id: &SandboxId) -> Result<(), Error> {
        let _order = self.deadlines().lock().await;
        let row = self.store().sandbox(id).await?;
        if let Some(deadline) = row.as_ref().and_then(deadline)
            && let Err(error) = self.tell_deadline(id, deadline).await
        {
            // It ended in between, which its driver has recorded.
            tracing::debug!(sandbox.id = %id, %error, "no time limit to pass on");
        }
        Ok(())
    }

    /// Waits until nothing of a failed start is left and makes sure that it is
    /// on record.
    async fn settle(&self, id: &SandboxId, ending: &Ending) -> Result<(), Error> {
        let gone = tokio::time::timeout(REMOVAL, self.host().ended(id)).await;
        if !matches!(gone, Ok(Ok(_))) {
            tracing::debug!(sandbox.id = %id, "no driver has this sandbox any more");
        }
        self.record_ending(id, ending).await
    }

    /// Waits for a start and says what came of it.
    pub(crate) async fn started(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.starts().over(id).await;
        let row = self.store().sandbox(id).await?;
        let row = row.ok_or(Error::NotFound { noun: "sandbox" })?;
        match (&row.ending, row.started) {
            // It ran, and was not what was asked for.
            (Some(ending), Some(_)) if ending.cause == Cause::StartFailed => {
                Err(Error::StartFailed { id: row.id, ending: ending.clone() })
            }
            // It ran. That it has ended since is for the caller to see.
            (_, Some(_)) => Ok(row),
            (Some(ending), None) => Err(Error::StartFailed { id: row.id, ending: ending.clone() }),
            (None, None) => Err(Error::Unavailable {
                detail: "the server is shutting down; the sandbox was not started",
                source: None,
            }),
        }
    }

    /// Records how a sandbox ended, unless its driver did.
    pub(crate) async fn record_ending(&self, id: &SandboxId, ending: &Ending) -> Result<(), Error> {
        let ledger = StoreLedger::new(self.store().clone(), *self.sources());
        let ledger = ledger.with_gateway(self.settings().gateway.clone());
        ledger.record_ended(id, ending).await?;
        Ok(())
    }
}

/// What the audit log says about a request. Of the environment, how much there is.
fn describe(new: &NewSandbox) -> Detail {
    detail([
        match &new.snapshot {
            Some(snapshot) => ("snapshot", snapshot.as_str().into()),
            None => ("template", new.template.as_str().into()),
        },
        ("network", new.network.mode.as_str().into()),
        ("timeout_seconds", new.timeout.get().as_secs().into()),
        ("variables", new.environment.names().count().into()),
        match new.size {
            SizeChoice::Class(class) => ("size", class.as_str().into()),
            SizeChoice::Explicit { cpus, memory_mib } => {
                ("size", format!("{cpus} cpus, {memory_mib} MiB").into())
            }
        },
    ])
}

/// When the driver ends a running sandbox. One that is to be paused at its time
/// limit gets longer than that: while a pause fails, its work is not given up.
pub(crate) fn deadline(row: &Sandbox) -> Option<Timestamp> {
    row.expires.map(|expires| match row.rest.on_timeout {
        OnTimeout::Terminate => expires,
        OnTimeout::Pause => expires.plus(PAUSE_ALLOWANCE),
    })
}

/// The ending of what was asked to end.
pub(crate) fn requested() -> Ending {
    Ending::new(Cause::Requested, "it was terminated on request")
}
