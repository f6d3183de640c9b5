//! A small internet for tests, in network namespaces of its own.
//!
//! Two namespaces, joined by one cable: in one the gateway's engine runs, in the
//! other everything that a sandbox might want to reach, and everything that it
//! must not. Addresses look public and lead nowhere else. What counts is what
//! arrives: the authority logs every question, the origins log every byte, the
//! canaries every connection. A status code proves nothing by itself.
//!
//! Needs root and `ip`; [`Lab::start`] says what is missing.

mod authority;
mod namespace;
mod origin;
mod session;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use domain::id::SandboxId;
use gateway::{
    engine::{Engine, Limits},
    journal::{Journal, Record},
    resolve::{Resolver, dns::Dns},
    rules::{Policy, Rules},
    tls::{
        authority::{Authorities, RootKey},
        upstream::{Roots, Trust},
    },
};
use tokio::sync::watch;

pub use self::{
    authority::{Answer, Script},
    origin::{Log, Seen},
    session::Client,
};
use self::{namespace::Namespaces, origin::Certificates};
use crate::fixtures::sandbox_id;

/// Where most names lead.
pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 1);
/// Where nothing listens, and connections are refused at once.
pub const CLOSED: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 2);
/// The authority for every name.
pub const AUTHORITY: Ipv4Addr = Ipv4Addr::new(93, 184, 215, 53);
/// What must never be reached, and could be: canaries listen there.
pub const INTERNAL: [Ipv4Addr; 4] = [
    Ipv4Addr::new(10, 9, 8, 7),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(192, 168, 77, 1),
    Ipv4Addr::new(100, 64, 0, 9),
];

/// Both namespaces, with everything outside. Ends when dropped.
pub struct Internet {
    namespaces: Namespaces,
    /// Bytes and connections at origins and canaries.
    pub log: Log,
    /// Questions at the authority.
    pub script: Script,
    /// Certificates that origins have.
    certificates: Certificates,
}

impl std::fmt::Debug for Internet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Internet").finish_non_exhaustive()
    }
}

impl Internet {
    /// Builds one whose origins have a certificate for `names`. `Err` says why
    /// this machine cannot.
    pub fn start(names: &[&str]) -> Result<Self, String> {
        let namespaces = Namespaces::new()?;
        let certificates = Certificates::new(names);
        let (log, script) = (Log::default(), Script::default());
        namespaces.outside(origin::serve(log.clone(), certificates.config()));
        namespaces.outside(authority::serve(script.clone()));
        log.wait_until_listening();
        Ok(Self { namespaces, log, script, certificates })
    }

    /// The root under which origins have their certificates, as PEM.
    pub fn root(&self) -> String {
        self.certificates.root()
    }
}

/// An internet and an engine in it. Everything ends with it.
pub struct Lab {
    internet: Internet,
    /// Bytes and connections at origins and canaries.
    pub log: Log,
    /// Questions at the authority.
    pub script: Script,
    engine: Arc<Engine>,
    rules: watch::Sender<Arc<Rules>>,
    journal: Arc<Kept>,
    sandbox: SandboxId,
    authorities: Arc<Authorities>,
}

impl std::fmt::Debug for Lab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lab").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Kept(Mutex<Vec<Record>>);

impl Journal for Kept {
    fn record(&self, record: Record) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}

struct One(SandboxId, watch::Receiver<Arc<Rules>>);

#[async_trait]
impl Policy for One {
    async fn rules(&self, sandbox: &SandboxId, _: u64) -> Option<watch::Receiver<Arc<Rules>>> {
        (*sandbox == self.0).then(|| self.1.clone())
    }
}

impl Lab {
    /// Builds one. `Err` says why this machine cannot.
    pub fn start(names: &[&str], limits: Limits) -> Result<Self, String> {
        let internet = Internet::start(names)?;
        let (log, script) = (internet.log.clone(), internet.script.clone());
        let sandbox = sandbox_id();
        let (rules, known) = watch::channel(Arc::new(Rules::off(sandbox.clone(), 1)));
        let journal = Arc::new(Kept::default());
        let authorities = Arc::new(Authorities::new(RootKey::from_random([7; 32])));
        let trust = Trust::new(&Roots::These(internet.root().into_bytes()))
            .map_err(|error| error.to_string())?;
        let (kept, issuing) = (journal.clone(), authorities.clone());
        let policy = Arc::new(One(sandbox.clone(), known));
        let engine = internet.namespaces.inside(async move {
            let lookup = Dns::new(&[SocketAddr::from((AUTHORITY, 53))]).expect("a resolver");
            let resolver = Resolver::new(Box::new(lookup));
            Arc::new(Engine::new(policy, kept, resolver, issuing, trust, limits))
        });
        Ok(Self { internet, log, script, engine, rules, journal, sandbox, authorities })
    }

    /// Replaces the rules of the sandbox.
    pub fn set_rules(&self, change: impl FnOnce(&mut Rules)) {
        self.rules.send_modify(|rules| {
            let mut next = Rules::clone(rules);
            change(&mut next);
            next.generation += 1;
            *rules = Arc::new(next);
        });
    }

    /// What the gateway's journal has, once it has at least `count` lines.
    pub fn journal(&self, count: usize) -> Vec<Record> {
        for _ in 0..200 {
            let kept = self.journal.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if kept.len() >= count {
                return kept;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.journal.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets what was seen until now.
    pub fn forget(&self) {
        self.log.clear();
        self.script.clear();
        self.journal.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The root under which origins have their certificates, as PEM.
    pub fn root(&self) -> String {
        self.internet.root()
    }

    /// The sandbox's own authority, as PEM.
    pub fn authority(&self) -> String {
        self.authorities.certificate(&self.sandbox).expect("an authority")
    }
}
