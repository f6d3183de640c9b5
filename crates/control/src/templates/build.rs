//! Building a template.
//!
//! ```text
//!  judge ──► ground ──► plan ──► last known step ──► machine ──► steps ──► bind
//!            (FROM)     (keys)   (snapshot)                      capture   (name)
//! ```
//!
//! The steps run in a sandbox of the caller's organisation. After each that is
//! worth it the machine is captured under the key of the step, so that the next
//! build begins there. The last capture gets the name, in one transaction.
//!
//! Invariants:
//!
//! - A build belongs to whoever follows it: when they go away, it ends.
//! - However it ends, the machine is removed, and so is every snapshot that
//!   nothing refers to. Steps that were done stay, because they are right.
//! - The name stands for the old template until the new one is whole.
//! - No value of a variable is on record. They are given to the guest, and stay
//!   in the memory that is captured.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use domain::{
    caller::Caller,
    environment::Environment,
    id::{Alias, SandboxId, SnapshotId, TemplateId},
    phase::Phase,
    template::{
        TemplateName,
        description::{Description, Ready, When},
    },
};
use sandbox::spec::{Personality, SandboxSpec, Source};
use store::{
    archive::context::Context,
    sandboxes::{Added, Fingerprint, Sandbox, rest::Rest},
    snapshots::Purpose,
    templates::TemplateStep,
};
use tokio::time::Instant;

use super::{
    Template,
    base::Ground,
    events::{Build, Event, Feed, NewTemplate},
    kept,
    plan::{Plan, Planned, Work, plan, program},
    ready,
    workshop::{LIMIT, Said, Workshop},
};
use crate::{
    Control,
    authority::{Action, Owner, Permit, may},
    control::{Detail, detail},
    egress::Network,
    error::Error,
    sandboxes::request::SizeChoice,
};

/// Steps that are remembered for each organisation.
const MOST_STEPS: u32 = 64;
/// How long a program that START names is watched where READY says nothing.
const SETTLING: Duration = Duration::from_millis(500);

/// What was made and is nobody's yet.
#[derive(Debug, Default)]
struct Made {
    sandbox: Option<SandboxId>,
    snapshot: Option<SnapshotId>,
}

/// One build.
struct Builder {
    control: Control,
    caller: Caller,
    permit: Permit,
    name: TemplateName,
    description: Description,
    context: Context,
    size: Option<SizeChoice>,
    network: Network,
    feed: Feed,
    made: Mutex<Made>,
    latest: Instant,
}

impl Control {
    /// Says whether the caller may build templates at all, before anything large
    /// is received.
    pub async fn may_build(&self, caller: &Caller) -> Result<(), Error> {
        let action = Action::TemplateBuild;
        match may(caller, action, Owner::Caller) {
            Ok(_permit) => Ok(()),
            Err(denied) => {
                Err(self.refuse(caller, action, None, Detail::new(), denied.into()).await)
            }
        }
    }

    /// Begins to build a template.
    ///
    /// # Errors
    /// What can be said before anything is done; all else is an event.
    pub async fn build_template(&self, caller: &Caller, new: NewTemplate) -> Result<Build, Error> {
        let action = Action::TemplateBuild;
        let object = Some(new.name.to_string());
        let told = describe(&new);
        let (permit, description) = match self.judge_build(caller, &new).await {
            Ok(judged) => judged,
            Err(error) => {
                return Err(self.refuse(caller, action, object.as_deref(), told, error).await);
            }
        };
        let line = self.allowed(caller, permit, object.as_deref(), told);
        self.store().append_audit(&line).await?;
        let (feed, build) = Feed::new();
        let builder = Builder {
            control: self.clone(),
            caller: caller.clone(),
            permit,
            name: new.name,
            description,
            context: new.context,
            size: new.size,
            network: new.network,
            feed,
            made: Mutex::default(),
            latest: Instant::now() + LIMIT,
        };
        self.tasks().spawn(builder.run());
        Ok(build)
    }

    async fn judge_build(
        &self,
        caller: &Caller,
        new: &NewTemplate,
    ) -> Result<(Permit, Description), Error> {
        let permit = may(caller, Action::TemplateBuild, Owner::Caller)?;
        self.available(new.network.mode)?;
        let description = Description::parse(&new.description)
            .map_err(|mistakes| Error::invalid("description", mistakes))?;
        if new.name.as_str().starts_with(store::images::built::PREFIX)
            || self.installed(&new.name).await?.is_some()
        {
            let what = format!("{:?} is the name of an image; choose another", new.name.as_str());
            return Err(Error::invalid("name", what));
        }
        if let Some(size) = new.size {
            size.resources(&self.settings().tier)?;
        }
        Ok((permit, description))
    }
}

impl Builder {
    /// Builds, and clears up however that ends.
    async fn run(self) {
        let outcome = tokio::select! {
            outcome = self.build() => outcome,
            () = self.feed.closed() => Err(Error::BuildFailed {
                line: None,
                detail: "nobody follows the build any more".to_owned(),
            }),
            () = tokio::time::sleep_until(self.latest) => Err(Error::BuildFailed {
                line: None,
                detail: format!("it took longer than {}s", LIMIT.as_secs()),
            }),
        };
        self.clear().await;
        match outcome {
            Ok(template) => self.feed.tell(Event::Built(Box::new(template))).await,
            Err(error) => {
                let object = Some(self.name.as_str());
                let action = Action::TemplateBuild;
                let told = Detail::new();
                let error = self.control.refuse(&self.caller, action, object, told, error).await;
                self.feed.tell(Event::Failed(error)).await;
            }
        }
    }

    async fn build(&self) -> Result<Template, Error> {
        let control = &self.control;
        let from = &self.description.from;
        let mut ground = control.ground(&self.caller, from, &self.context, self.size).await?;
        if ground.snapshot.is_some() && self.mentions_variables() {
            // What a template sets is in its memory only, so it is asked.
            let shop = self.begin(&ground, ground.snapshot.clone()).await?;
            let inherited = shop.environment().await.map_err(|detail| failed(1, detail))?;
            ground.state.inherited = inherited.into_iter().collect();
            self.end(&shop.row.id).await;
        }
        let plan = self.plan(&ground).await?;
        if let Some(template) = self.unchanged(&ground, &plan).await? {
            self.feed.note("nothing has changed since it was built").await;
            return Ok(template);
        }
        let (done, snapshot) = self.known(&ground, &plan).await?;
        let of = plan.steps.len();
        for (index, step) in plan.steps.iter().take(done).enumerate() {
            self.begins(index, of, step, true).await;
        }
        let shop = self.begin(&ground, snapshot).await?;
        for (index, step) in plan.steps.iter().enumerate().skip(done) {
            self.begins(index, of, step, false).await;
            self.perform(&shop, step).await?;
            if step.work.is_kept() {
                let kept = self.keep(&shop.row).await?;
                self.remember(&step.key, kept).await?;
            }
        }
        self.settle(&shop, &plan).await?;
        let template = self.bind(&shop.row, &ground, &plan, done).await?;
        Ok(template)
    }

    async fn begins(&self, index: usize, of: usize, step: &Planned, cached: bool) {
        let (line, text) = (step.line, step.text.clone());
        self.feed.tell(Event::Step { number: index + 1, of, line, text, cached }).await;
    }

    /// Whether a step needs to know variables that it does not set.
    fn mentions_variables(&self) -> bool {
        use domain::template::description::Action as A;
        self.description.steps.iter().any(|step| match &step.action {
            A::Run(_) => false,
            A::Copy(copy) => {
                copy.destination.plain().is_none()
                    || copy.sources.iter().any(|source| source.plain().is_none())
            }
            A::Env(variables) => variables.iter().any(|(_, value)| value.plain().is_none()),
            A::Workdir(text) | A::User(text) => text.plain().is_none(),
        })
    }

    /// Reads every file that is copied, so it is done aside.
    async fn plan(&self, ground: &Ground) -> Result<Plan, Error> {
        let (description, context) = (self.description.clone(), self.context.clone());
        let (key, state) = (ground.key.clone(), ground.state.clone());
        let planned =
            tokio::task::spawn_blocking(move || plan(&description, &key, state, &context)).await;
        let planned = planned.map_err(|error| Error::Internal { source: Box::new(error) })?;
        planned.map_err(|mistake| failed(mistake.line, mistake.what))
    }

    /// The template of this name, if it is exactly what would be built.
    async fn unchanged(&self, ground: &Ground, plan: &Plan) -> Result<Option<Template>, Error> {
        let organization = &self.caller.organization;
        let found = self.control.store().template(organization, &self.name).await?;
        let same =
            found.filter(|found| found.key == plan.key && found.image == ground.image.digest);
        let Some(template) = same else { return Ok(None) };
        Ok(self.control.loadable(&template.snapshot).await?.map(|_| template))
    }

    /// How many steps an earlier build has done, and the machine after them.
    async fn known(
        &self,
        ground: &Ground,
        plan: &Plan,
    ) -> Result<(usize, Option<SnapshotId>), Error> {
        let (control, organization) = (&self.control, &self.caller.organization);
        let kept = plan.steps.iter().enumerate().filter(|(_, step)| step.work.is_kept());
        for (index, step) in kept.rev() {
            let now = control.now();
            let found = control.store().use_template_step(organization, &step.key, &self.name, now);
            let Some(snapshot) = found.await? else { continue };
            if control.loadable(&snapshot).await?.is_some() {
                return Ok((index + 1, Some(snapshot)));
            }
            // It was made by another version of something, or its file is gone.
            control.store().remove_template_step(organization, &step.key).await?;
            control.discard_snapshot(&snapshot).await;
        }
        Ok((0, ground.snapshot.clone()))
    }

    /// Starts a machine to build in.
    async fn begin(
        &self,
        ground: &Ground,
        snapshot: Option<SnapshotId>,
    ) -> Result<Workshop<'_>, Error> {
        let control = &self.control;
        let source = match &snapshot {
            None => Source::Template,
            Some(id) => Source::Snapshot(control.loadable(id).await?.ok_or_else(|| {
                failed(
                    1,
                    format!("{} cannot be started here any more; build it again", ground.said),
                )
            })?),
        };
        let row = self.row(ground, snapshot)?;
        let id = row.id.clone();
        let organization = &self.caller.organization;
        control.store().add_template_build(&id, organization, control.now()).await?;
        self.made().sandbox = Some(id.clone());
        let told = detail([("template", self.name.as_str().into())]);
        let line = control.allowed(&self.caller, self.permit, Some(id.as_str()), told);
        let most = control.settings().tier.max_concurrent;
        let fingerprint = Fingerprint { key: None, request: String::new() };
        let start = control.starts().begin(id.clone());
        let place = control.place(organization, &row.resources, 1).await?;
        let added = control.store().add_sandbox(&row, &fingerprint, most, &line).await?;
        drop(place);
        match added {
            Added::New => {}
            Added::Full { in_use } => return Err(Error::no_more_sandboxes(most, in_use)),
            Added::Repeated(_) | Added::KeyReused => {
                return Err(failed(1, "the machine to build in was not made".to_owned()));
            }
        }
        let spec = SandboxSpec {
            image: ground.image.clone(),
            resources: ground.resources,
            source,
            disks: Vec::new(),
        };
        let task = control.clone();
        let starting = row.clone();
        control.tasks().spawn(async move {
            let personality = Personality { network: starting.network, ..Personality::default() };
            task.start(&starting, spec, personality).await;
            drop(start);
        });
        let row = control.started(&id).await?;
        Ok(Workshop {
            control,
            row,
            feed: &self.feed,
            latest: self.latest,
            passed_on: Mutex::new(0),
        })
    }

    fn row(&self, ground: &Ground, parent: Option<SnapshotId>) -> Result<Sandbox, Error> {
        let (control, caller) = (&self.control, &self.caller);
        let label = ("coldframe/template".to_owned(), self.name.to_string());
        Ok(Sandbox {
            id: SandboxId::from_random(control.random()),
            alias: Alias::from_random(control.random()),
            organization: caller.organization.clone(),
            owner: caller.user.clone(),
            region: control.settings().region.clone(),
            template: self.name.clone(),
            image: ground.image.digest,
            size: ground.size,
            resources: ground.resources,
            network: self.network.mode,
            egress: control.agreed(&self.network, &ground.image)?,
            phase: Phase::Provisioning,
            intent: None,
            ending: None,
            metadata: BTreeMap::from([label]),
            timeout: LIMIT,
            created: control.now(),
            started: None,
            ended: None,
            expires: None,
            rest: Rest::default(),
            parent,
            generation: 0,
        })
    }

    async fn perform(&self, shop: &Workshop<'_>, step: &Planned) -> Result<(), Error> {
        let state = &step.state;
        let done = match &step.work {
            Work::Nothing => Ok(()),
            Work::Run(command) => shop.program(command, state, &state.account, Said::Passed).await,
            Work::Copy(load, owner) => shop.copy(load, &self.context, owner.as_ref()).await,
            Work::Workdir(path) => shop.folder(path, &state.account).await,
        };
        done.map_err(|detail| failed(step.line, detail))
    }

    /// What comes after the last step: variables, START, READY.
    async fn settle(&self, shop: &Workshop<'_>, plan: &Plan) -> Result<(), Error> {
        let state = &plan.state;
        let environment = Environment::new(state.environment.clone())
            .map_err(|error| failed(1, error.to_string()))?;
        if !state.environment.is_empty() {
            let furnished = self.control.host().furnish(&shop.row.id, &environment).await;
            furnished.map_err(|error| failed(1, error.to_string()))?;
        }
        let ready = self.description.ready.clone();
        let waiting = |else_: Duration| {
            let ready = ready.clone();
            async move {
                match ready {
                    Some(ready) => {
                        self.feed.note(format!("READY {}", shown(&ready))).await;
                        ready::wait(shop, &ready, state).await
                    }
                    None => {
                        tokio::time::sleep(else_).await;
                        Ok(())
                    }
                }
            }
        };
        let settled = match &self.description.start {
            Some(command) => {
                self.feed.note(format!("START {}", program(command))).await;
                shop.service(command, state, waiting(SETTLING)).await
            }
            None => waiting(Duration::ZERO).await,
        };
        settled.map_err(|detail| Error::BuildFailed { line: None, detail })
    }

    /// Captures the machine, which is nobody's until it is referred to.
    async fn keep(&self, row: &Sandbox) -> Result<SnapshotId, Error> {
        let (control, caller) = (&self.control, &self.caller);
        let (snapshot, sealed) = control.planned(row, &caller.user, Purpose::Template);
        let id = snapshot.id.clone();
        self.made().snapshot = Some(id.clone());
        let line = control.allowed(caller, self.permit, Some(id.as_str()), Detail::new());
        match control.make(&snapshot, sealed, &line).await {
            Ok(()) => Ok(id),
            Err(error @ (Error::Internal { .. } | Error::Unavailable { .. })) => Err(error),
            Err(error) => Err(Error::BuildFailed { line: None, detail: error.to_string() }),
        }
    }

    async fn remember(&self, key: &str, snapshot: SnapshotId) -> Result<(), Error> {
        let step = TemplateStep {
            organization: self.caller.organization.clone(),
            key: key.to_owned(),
            snapshot,
            template: self.name.clone(),
        };
        let store = self.control.store();
        let gone = store.add_template_step(&step, self.control.now(), MOST_STEPS).await?;
        self.made().snapshot = None;
        for snapshot in gone {
            self.control.discard_snapshot(&snapshot).await;
        }
        Ok(())
    }

    async fn bind(
        &self,
        row: &Sandbox,
        ground: &Ground,
        plan: &Plan,
        cached: usize,
    ) -> Result<Template, Error> {
        let (control, caller) = (&self.control, &self.caller);
        let snapshot = self.keep(row).await?;
        let now = control.now();
        let template = Template {
            id: TemplateId::from_random(control.random()),
            organization: caller.organization.clone(),
            owner: caller.user.clone(),
            region: control.settings().region.clone(),
            name: self.name.clone(),
            base: ground.said.clone(),
            key: plan.key.clone(),
            snapshot,
            image: ground.image.digest,
            image_name: ground.image.name.clone(),
            size: ground.size,
            resources: ground.resources,
            workdir: plan.state.workdir.clone(),
            account: plan.state.account.clone(),
            created: now,
            built: now,
        };
        let told = kept::built(cached, plan.steps.len());
        let line = control.allowed(caller, self.permit, Some(self.name.as_str()), told);
        let before = control.store().bind_template(&template, &line).await?;
        self.made().snapshot = None;
        if let Some(before) = before {
            control.discard_snapshot(&before).await;
        }
        let bound = control.store().template(&caller.organization, &self.name).await?;
        Ok(bound.unwrap_or(template))
    }

    /// Removes the machine and what is nobody's.
    async fn clear(&self) {
        let Made { sandbox, snapshot } = std::mem::take(&mut *self.made());
        if let Some(sandbox) = sandbox {
            self.end(&sandbox).await;
        }
        if let Some(snapshot) = snapshot {
            self.control.discard_snapshot(&snapshot).await;
        }
    }

    async fn end(&self, sandbox: &SandboxId) {
        self.control.starts().over(sandbox).await;
        let ended = async {
            match self.control.terminate_sandbox(&self.caller, sandbox).await {
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            Ok(self.control.store().remove_template_build(sandbox).await?)
        };
        if let Err(error) = ended.await {
            tracing::warn!(sandbox.id = %sandbox, %error, "a machine of a build is removed later");
        }
        self.made().sandbox = None;
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        // Nothing panics while it is held.
        self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn failed(line: usize, detail: String) -> Error {
    Error::BuildFailed { line: Some(line), detail }
}

fn shown(ready: &Ready) -> String {
    match &ready.when {
        When::Succeeds(command) => program(command),
        When::Listens(port) => format!("port {port}"),
        When::Passed(seconds) => format!("{seconds}s"),
    }
}

/// What the audit log says about a request.
fn describe(new: &NewTemplate) -> Detail {
    let digest = domain::image::digest::Digest::of(new.description.as_bytes());
    detail([
        ("description", digest.to_string().into()),
        ("network", new.network.mode.as_str().into()),
    ])
}
