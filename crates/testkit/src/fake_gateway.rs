//! A gateway that keeps what it is told and lets nothing out.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use control::egress::Gateway;
use domain::id::SandboxId;
use gateway::rules::Rules;

/// A gateway for tests.
#[derive(Clone, Debug, Default)]
pub struct FakeGateway {
    rules: Arc<Mutex<HashMap<SandboxId, Rules>>>,
    down: Arc<AtomicBool>,
}

impl FakeGateway {
    /// The rules that it was handed last.
    pub fn rules(&self, id: &SandboxId) -> Option<Rules> {
        self.lock().get(id).cloned()
    }

    /// Makes it say that it does not run.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Rules>> {
        self.rules.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[async_trait]
impl Gateway for FakeGateway {
    fn ready(&self) -> bool {
        !self.down.load(Ordering::SeqCst)
    }

    async fn publish(&self, rules: Rules) {
        let mut all = self.lock();
        let newer = all.get(&rules.sandbox).is_none_or(|had| had.generation <= rules.generation);
        if newer {
            all.insert(rules.sandbox.clone(), rules);
        }
    }

    async fn forget(&self, sandbox: &SandboxId) {
        self.lock().remove(sandbox);
    }
}
