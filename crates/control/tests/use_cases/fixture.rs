//! An installation in memory: store, images, host and callers.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use control::{
    Control,
    audit::{AuditLine, AuditQuery},
    bootstrap::{FirstTokens, bootstrap},
    egress::Gateway,
    error::Error,
    images::{ImageSummary, Images, ImagesError},
    ledger::StoreLedger,
    page::Limit,
    pool::PoolSettings,
    sandboxes::NewSandbox,
    settings::{Settings, TierLimits},
};
use domain::{
    caller::Caller,
    id::{OrganizationId, SandboxId, SnapshotId, TokenId, UserId},
    image::{Image, ImageName},
    isolation::IsolationClass,
    mode::EgressMode,
    region::Region,
    scope::Scopes,
};
use sandbox::{
    backend::{Backend, BackendError, Captured, Pipe, Sealed, Then},
    host::Host,
    spec::SandboxSpec,
    volumes::Disk,
};
use store::{Store, organizations::Organization, sealing::Sealing, users::User};
use testkit::{
    fake_backend::FakeBackend,
    fake_gateway::FakeGateway,
    fixtures::{distinct_bytes, image, sources},
};
use tokio::sync::Semaphore;

/// One installation.
pub(crate) struct Installation {
    pub(crate) control: Control,
    pub(crate) store: Store,
    pub(crate) host: Host,
    pub(crate) backend: GatedBackend,
    pub(crate) gateway: FakeGateway,
    /// Holds both sandbox scopes.
    pub(crate) caller: Caller,
    /// Holds `admin`.
    pub(crate) administrator: Caller,
}

impl Installation {
    pub(crate) async fn new() -> Self {
        Self::with(TierLimits::default(), "sqlite::memory:").await
    }

    pub(crate) async fn with(tier: TierLimits, url: &str) -> Self {
        let store = Store::open(url).await.expect("it opens");
        let store = store.with_sealing(Sealing::from_random([9; 32]));
        let mut kept = None;
        let region = Region::local();
        let keep = |tokens: &FirstTokens| {
            kept = Some(tokens.clone());
            Ok(())
        };
        bootstrap(&store, &region, &sources(), keep).await.expect("the first start");
        let tokens = kept.expect("they were kept");
        Self::over(tier, store, tokens, GatedBackend::default()).await
    }

    /// One over what there is already.
    pub(crate) async fn over(
        tier: TierLimits,
        store: Store,
        tokens: FirstTokens,
        backend: GatedBackend,
    ) -> Self {
        let gateway = FakeGateway::default();
        let (control, host) = compose(&store, &backend, &gateway, tier).expect("it fits");
        let caller = control.authenticate(&tokens.sandboxes).await.expect("a known token");
        let administrator = control.authenticate(&tokens.admin).await.expect("a known token");
        Self { control, store, host, backend, gateway, caller, administrator }
    }

    /// The same installation after its process was replaced.
    pub(crate) async fn restarted(self) -> Self {
        self.host.release().await;
        let tier = TierLimits::default();
        let (control, host) =
            compose(&self.store, &self.backend, &self.gateway, tier).expect("it fits");
        Self { control, host, ..self }
    }

    /// The same installation, which keeps paused sandboxes for another time.
    pub(crate) async fn keeping(self, retention: Duration) -> Self {
        self.host.release().await;
        let ledger = StoreLedger::new(self.store.clone(), sources()).keeping(retention);
        let tier = TierLimits::default();
        let (control, host) =
            compose_with(&self.store, &self.backend, &self.gateway, tier, ledger).expect("it fits");
        Self { control, host, ..self }
    }

    /// The same installation with machines that are made ahead.
    pub(crate) async fn pooled(self, pool: PoolSettings) -> Self {
        self.pooled_with(pool, TierLimits::default()).await
    }

    pub(crate) async fn pooled_with(self, pool: PoolSettings, tier: TierLimits) -> Self {
        self.host.release().await;
        let ledger = StoreLedger::new(self.store.clone(), sources());
        let settings = Settings { tier, pool, ..Settings::new(Region::local()) };
        let (control, host) =
            compose_settings(&self.store, &self.backend, &self.gateway, settings, ledger)
                .expect("it fits");
        Self { control, host, ..self }
    }

    /// A caller of another organisation.
    pub(crate) async fn stranger(&self) -> Caller {
        let now = (sources().clock)();
        let organization = Organization {
            id: OrganizationId::from_random(distinct_bytes()),
            name: "other".to_owned(),
            region: Region::local(),
            created: now,
        };
        let user = User {
            id: UserId::from_random(distinct_bytes()),
            organization: organization.id.clone(),
            name: "admin".to_owned(),
            region: Region::local(),
            created: now,
        };
        self.store.add_organization(&organization).await.expect("added");
        self.store.add_user(&user).await.expect("added");
        Caller {
            organization: organization.id,
            user: user.id,
            token: TokenId::from_random(distinct_bytes()),
            scopes: self.caller.scopes.clone(),
        }
    }

    /// Every line of an organisation, oldest first.
    pub(crate) async fn lines(&self, caller: &Caller) -> Vec<AuditLine> {
        let filter = store::audit::AuditFilter {
            organization: caller.organization.clone(),
            object: None,
            limit: 1000,
            before: None,
        };
        let lines = self.store.audit_lines(&filter).await.expect("the store answers");
        lines.into_iter().rev().map(|(_, line)| line).collect()
    }

    /// The actions about one object, oldest first.
    pub(crate) async fn actions(&self, id: &SandboxId) -> Vec<String> {
        let lines = self.lines(&self.caller).await;
        let about = |line: &AuditLine| line.object.as_deref() == Some(id.as_str());
        lines.into_iter().filter(about).map(|line| line.action).collect()
    }

    /// What exists on the backend.
    pub(crate) async fn machines(&self) -> Vec<SandboxId> {
        self.backend.list().await.expect("a list")
    }
}

pub(crate) fn compose(
    store: &Store,
    backend: &GatedBackend,
    gateway: &FakeGateway,
    tier: TierLimits,
) -> Result<(Control, Host), Error> {
    compose_with(store, backend, gateway, tier, StoreLedger::new(store.clone(), sources()))
}

fn compose_with(
    store: &Store,
    backend: &GatedBackend,
    gateway: &FakeGateway,
    tier: TierLimits,
    ledger: StoreLedger,
) -> Result<(Control, Host), Error> {
    let settings = Settings { tier, ..Settings::new(Region::local()) };
    compose_settings(store, backend, gateway, settings, ledger)
}

fn compose_settings(
    store: &Store,
    backend: &GatedBackend,
    gateway: &FakeGateway,
    settings: Settings,
    ledger: StoreLedger,
) -> Result<(Control, Host), Error> {
    let told: Arc<dyn Gateway> = Arc::new(gateway.clone());
    let ledger = ledger.with_gateway(Some(told.clone()));
    let host = Host::new(Arc::new(backend.clone()), Arc::new(ledger), sources());
    use EgressMode::{Brokered, Mediated, Off, Restricted};
    let settings = Settings {
        networks: vec![Off, Brokered, Restricted, Mediated],
        gateway: Some(told),
        ..settings
    };
    let control =
        Control::new(store.clone(), Arc::new(OneImage), host.clone(), settings, sources())?;
    Ok((control, host))
}

/// A request for the one template there is.
pub(crate) fn request() -> NewSandbox {
    NewSandbox::new("base".parse().expect("a name"))
}

pub(crate) fn scoped(caller: &Caller, scopes: &str) -> Caller {
    Caller { scopes: scopes.parse::<Scopes>().expect("scopes"), ..caller.clone() }
}

pub(crate) fn everything() -> AuditQuery {
    AuditQuery { limit: Limit::new(Limit::MAX).expect("a limit"), ..AuditQuery::default() }
}

pub(crate) fn sqlite_url(folder: &Path) -> String {
    format!("sqlite://{}", folder.join("coldframe.db").display())
}

/// `base` verifies, `broken` does not.
#[derive(Debug)]
pub(crate) struct OneImage;

#[async_trait]
impl Images for OneImage {
    async fn verified(&self, name: &ImageName) -> Result<Image, ImagesError> {
        match name.as_str() {
            "base" => Ok(image()),
            "broken" => Err(ImagesError::Refused("a file differs".into())),
            _ => Err(ImagesError::NotFound),
        }
    }

    async fn list(&self) -> Result<Vec<ImageSummary>, ImagesError> {
        let image = image();
        Ok(vec![ImageSummary {
            name: image.name,
            digest: Some(image.digest),
            release: image.manifest.release,
            size_bytes: 3,
            ready: true,
        }])
    }
}

/// The fake backend, with a gate before `create` that a test can close.
#[derive(Clone, Debug)]
pub(crate) struct GatedBackend {
    pub(crate) fake: FakeBackend,
    gate: Arc<Semaphore>,
    pub(crate) isolation: Arc<Mutex<IsolationClass>>,
}

/// More machines than any test makes.
const OPEN: usize = 1000;

impl Default for GatedBackend {
    fn default() -> Self {
        Self {
            fake: FakeBackend::default(),
            gate: Arc::new(Semaphore::new(OPEN)),
            isolation: Arc::new(Mutex::new(IsolationClass::Microvm)),
        }
    }
}

impl GatedBackend {
    /// One over a backend whose machines outlive whoever asks for them.
    pub(crate) fn over(fake: FakeBackend) -> Self {
        Self { fake, ..Self::default() }
    }

    pub(crate) fn close(&self) {
        assert_eq!(self.gate.forget_permits(OPEN), OPEN);
    }

    pub(crate) fn open(&self) {
        self.gate.add_permits(OPEN);
    }
}

#[async_trait]
impl Backend for GatedBackend {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn isolation(&self) -> IsolationClass {
        *self.isolation.lock().expect("not poisoned")
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<(), BackendError> {
        self.fake.prepare(spec).await
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<(), BackendError> {
        drop(self.gate.acquire().await.expect("it is never closed"));
        self.fake.create(id, spec).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, BackendError> {
        self.fake.connect(id).await
    }

    async fn wait(&self, id: &SandboxId) -> String {
        self.fake.wait(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.fake.destroy(id).await
    }

    async fn attach(&self, id: &SandboxId, disk: &Disk) -> Result<(), BackendError> {
        self.fake.attach(id, disk).await
    }

    async fn detach(&self, id: &SandboxId, slot: u8) -> Result<(), BackendError> {
        self.fake.detach(id, slot).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, BackendError> {
        self.fake.list().await
    }

    async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, BackendError> {
        self.fake.console(id).await
    }

    async fn capture(
        &self,
        id: &SandboxId,
        to: &Sealed,
        then: Then,
    ) -> Result<Captured, BackendError> {
        self.fake.capture(id, to, then).await
    }

    async fn proceed(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.fake.proceed(id).await
    }

    async fn loadable(&self, snapshot: &SnapshotId) -> Result<(), BackendError> {
        self.fake.loadable(snapshot).await
    }

    async fn forget(&self, snapshot: &SnapshotId) -> Result<(), BackendError> {
        self.fake.forget(snapshot).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, BackendError> {
        self.fake.snapshots().await
    }
}
