//! Who asks on one stream, and what the journal will say about each decision.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Instant, SystemTime},
};

use domain::{host::Host, id::SandboxId};
use tokio::sync::watch;

use crate::{
    code::{Code, Refusal},
    decide::{self, Front, Kind, Pinned, Request, identify, judge, recheck},
    engine::Engine,
    journal::{Record, Text},
    rules::Rules,
    splice::Moved,
};

/// A client in a sandbox, for as long as its stream lives.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) engine: Arc<Engine>,
    pub(crate) sandbox: SandboxId,
    pub(crate) uid: Option<u32>,
    pub(crate) front: Front,
    pub(crate) rules: watch::Receiver<Arc<Rules>>,
}

impl Client {
    /// The rules as they are now.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.borrow().clone()
    }

    /// Judges a destination, looks it up and pins it: the one way to addresses.
    pub(crate) async fn pin(
        &self,
        kind: Kind,
        host: Host,
        port: u16,
        entry: &Entry,
    ) -> Result<Pinned, Refusal> {
        let rules = self.rules();
        let permit = judge(&rules, &Request { front: self.front, kind, host, port })?;
        entry.rule(permit.rule());
        self.engine.resolver.pin(permit).await
    }

    /// Begins a record. The client is identified here, so nothing is done for
    /// one that is not.
    pub(crate) fn entry(&self, destination: Text) -> (Entry, Result<(), Refusal>) {
        let identified = identify(&self.rules(), self.uid);
        let session = identified.as_ref().ok().and_then(|client| client.session.clone());
        let record = Record {
            time: SystemTime::now().into(),
            sandbox: self.sandbox.clone(),
            session,
            uid: self.uid,
            front: self.front,
            destination,
            rule: "".into(),
            outcome: "allowed".into(),
            bytes_out: 0,
            bytes_in: 0,
            duration_ms: 0,
            dropped: 0,
        };
        let open = Open {
            record: Mutex::new(record),
            begun: Instant::now(),
            moved: Moved::default(),
            engine: self.engine.clone(),
        };
        let entry = Entry(Arc::new(open));
        let identified = identified.map(drop).inspect_err(|refusal| entry.refused(refusal));
        (entry, identified)
    }

    /// Waits until `holds` no longer holds under newer rules, or the sandbox is
    /// known no longer.
    pub(crate) fn revoked(
        &self,
        holds: impl Fn(&Rules) -> Result<(), Refusal> + Send + 'static,
    ) -> impl Future<Output = Refusal> + Send + 'static {
        let mut rules = self.rules.clone();
        let uid = self.uid;
        let first = identify(&rules.borrow_and_update(), uid);
        async move {
            loop {
                if rules.changed().await.is_err() {
                    return gone();
                }
                let now = rules.borrow_and_update().clone();
                if let Err(refusal) = holds(&now) {
                    return refusal;
                }
                if identify(&now, uid) != first {
                    return gone();
                }
            }
        }
    }

    /// The same for a pinned destination.
    pub(crate) fn revoked_from(
        &self,
        pinned: &Pinned,
    ) -> impl Future<Output = Refusal> + Send + 'static {
        let (engine, pinned) = (self.engine.clone(), pinned.clone());
        self.revoked(move |rules| recheck(rules, &pinned, &engine.resolver.own()?))
    }
}

fn gone() -> Refusal {
    Refusal::new(Code::PolicyDenied, "rules", "the rules of this sandbox changed; connect again")
}

/// A record that is written when the last part of what it is about is over.
#[derive(Clone)]
pub(crate) struct Entry(Arc<Open>);

struct Open {
    record: Mutex<Record>,
    begun: Instant,
    moved: Moved,
    engine: Arc<Engine>,
}

impl Entry {
    /// Bytes, counted as they move.
    pub(crate) fn moved(&self) -> &Moved {
        &self.0.moved
    }

    /// Which rule permits it.
    pub(crate) fn rule(&self, rule: &str) {
        self.edit(|record| record.rule = rule.into());
    }

    /// It came to nothing.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.edit(|record| {
            record.outcome = refusal.code.as_str().into();
            record.rule = refusal.rule.as_str().into();
        });
    }

    fn edit(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.0.record.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let record = self.record.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut record = record.clone();
        record.bytes_out = self.moved.up.load(Ordering::Relaxed);
        record.bytes_in = self.moved.down.load(Ordering::Relaxed);
        record.duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.engine.journal.record(record);
    }
}

/// The destination as a journal has it, before it was read.
pub(crate) fn read(raw: &str, default: Option<u16>) -> (Text, Result<(Host, u16), Refusal>) {
    match decide::destination(raw, default) {
        Ok((host, port)) => (Text::destination(&host, port), Ok((host, port))),
        Err(refusal) => (raw.into(), Err(refusal)),
    }
}
