//! A whole server in the test's process: real socket, real use cases, a database
//! in memory, and a backend that plays its guests.

use std::{net::SocketAddr, sync::Arc};

use api::client::Client;
use async_trait::async_trait;
use control::{
    Control,
    bootstrap::{FirstTokens, bootstrap},
    images::{ImageSummary, Images, ImagesError},
    ledger::StoreLedger,
    settings::Settings,
    volumes::{VolumeLimits, Volumes},
};
use domain::{
    id::{AuditId, OrganizationId, TokenId, UserId},
    image::{Image, ImageName},
    mode::EgressMode,
    region::Region,
    scope::Scopes,
    secret::Secret,
    token::Token,
};
use sandbox::host::Host;
use server::{Options, Server};
use store::{
    Store,
    audit::{AuditLine, Outcome},
    disks::Disks,
    objects::Objects,
    organizations::Organization,
    sealing::Sealing,
    tokens::TokenRecord,
    users::User,
};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{fake_backend::FakeBackend, fake_gateway::FakeGateway, fixtures};

/// A running server.
#[derive(Debug)]
pub struct App {
    /// Where it listens.
    pub address: SocketAddr,
    /// What is behind it.
    pub control: Control,
    /// Its database.
    pub store: Store,
    /// Its sandboxes.
    pub backend: FakeBackend,
    /// What it hands its rules to.
    pub gateway: FakeGateway,
    /// The first tokens.
    pub tokens: FirstTokens,
    /// Ends it when cancelled.
    pub shutdown: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
    /// Holds volumes and their checkpoints.
    _folder: TempDir,
}

impl App {
    /// Starts a server with ordinary options.
    pub async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    /// Starts a server.
    pub async fn start_with(options: Options) -> Self {
        let sources = fixtures::sources();
        let store = Store::open("sqlite::memory:").await.expect("a database in memory");
        let store = store.with_sealing(Sealing::from_random([9; 32]));
        let mut tokens = None;
        let keep = |first: &FirstTokens| {
            tokens = Some(first.clone());
            Ok(())
        };
        bootstrap(&store, &Region::local(), &sources, keep).await.expect("a first start");
        let backend = FakeBackend::default();
        let ledger = Arc::new(StoreLedger::new(store.clone(), sources));
        let host = Host::new(Arc::new(backend.clone()), ledger, sources);
        let gateway = FakeGateway::default();
        let settings = Settings {
            networks: EgressMode::ALL.into_iter().filter(|mode| *mode < EgressMode::Open).collect(),
            gateway: Some(Arc::new(gateway.clone())),
            ..Settings::new(Region::local())
        };
        let control =
            Control::new(store.clone(), Arc::new(OneImage), host, settings, sources).expect("fits");
        let folder = tempfile::tempdir().expect("a folder");
        let control = control.with_volumes(volumes(folder.path()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let server = Server::new(control.clone(), options);
        let serving = tokio::spawn(server.serve(listener, shutdown.clone()));
        let tokens = tokens.expect("the first start kept its tokens");
        Self {
            address,
            control,
            store,
            backend,
            gateway,
            tokens,
            shutdown,
            serving,
            _folder: folder,
        }
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A client that presents `token`.
    pub fn client(&self, token: &Token) -> Client {
        let secret = Secret::new(token.expose().to_owned());
        Client::new(&self.url(""), &secret).expect("a plain address")
    }

    /// A client that may use sandboxes.
    pub fn sandboxes(&self) -> Client {
        self.client(&self.tokens.sandboxes)
    }

    /// A token of the default organisation with these scopes.
    pub async fn token(&self, scopes: &str) -> Token {
        let known = self.store.token_by_hash(&self.tokens.admin.hash()).await;
        let known = known.expect("the store answers").expect("the first token is known");
        self.mint(known.organization, known.owner, scopes).await
    }

    /// A token of another organisation with these scopes.
    pub async fn stranger(&self, scopes: &str) -> Token {
        let organization = Organization {
            id: OrganizationId::from_random(fixtures::distinct_bytes()),
            name: "another".into(),
            region: Region::local(),
            created: (fixtures::sources().clock)(),
        };
        self.store.add_organization(&organization).await.expect("another organisation");
        let user = User {
            id: UserId::from_random(fixtures::distinct_bytes()),
            organization: organization.id.clone(),
            name: "stranger".into(),
            region: Region::local(),
            created: organization.created,
        };
        self.store.add_user(&user).await.expect("another user");
        self.mint(organization.id, user.id, scopes).await
    }

    async fn mint(&self, organization: OrganizationId, owner: UserId, scopes: &str) -> Token {
        let mut bytes = [0; 32];
        (fixtures::sources().random)(&mut bytes);
        let token = Token::from_random(bytes);
        let record = TokenRecord {
            id: TokenId::from_random(fixtures::distinct_bytes()),
            organization: organization.clone(),
            owner,
            region: Region::local(),
            scopes: scopes.parse::<Scopes>().expect("scopes"),
            name: String::new(),
            created: (fixtures::sources().clock)(),
            revoked: None,
        };
        let line = AuditLine {
            id: AuditId::from_random(fixtures::distinct_bytes()),
            time: record.created,
            organization,
            user: None,
            token: None,
            action: "token.mint".into(),
            object: None,
            outcome: Outcome::Observed,
            detail: serde_json::Map::new(),
        };
        self.store.add_token(&record, &token.hash(), &line).await.expect("a token");
        token
    }

    /// Stops the server and waits until it has let go of everything.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.expect("no panic").expect("no error");
        self.control.shut_down(std::time::Duration::from_secs(5)).await;
    }
}

/// A place for volumes below a folder.
pub fn volumes(folder: &std::path::Path) -> Volumes {
    let disks = Disks::open(folder.join("volumes")).expect("a folder");
    let objects = Objects::folder(&folder.join("objects")).expect("a folder");
    let limits =
        VolumeLimits { most_mib: 64, most_total_mib: 256, reserve: 0, ..VolumeLimits::default() };
    Volumes::new(disks, objects, limits)
}

/// One image, which verifies.
#[derive(Debug)]
struct OneImage;

#[async_trait]
impl Images for OneImage {
    async fn verified(&self, name: &ImageName) -> Result<Image, ImagesError> {
        let image = fixtures::image();
        if image.name == *name { Ok(image) } else { Err(ImagesError::NotFound) }
    }

    async fn list(&self) -> Result<Vec<ImageSummary>, ImagesError> {
        let image = fixtures::image();
        Ok(vec![ImageSummary {
            name: image.name,
            digest: Some(image.digest),
            release: image.manifest.release,
            size_bytes: 3,
            ready: true,
        }])
    }
}
