//! A backend without machines: each sandbox is a task that plays the guest.
//!
//! The link, the mux and the control stream are the real ones; only what is
//! behind them is scripted ([`crate::fake_guest`]). It passes the same contract
//! as the real backends, and a test can make it fail where it wants.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use domain::{id::SandboxId, isolation::IsolationClass};
use sandbox::{
    backend::{Backend, BackendError, Pipe},
    spec::SandboxSpec,
};
use tokio::{io::DuplexStream, sync::watch, task::JoinHandle};

use crate::fake_guest::{FakeGuest, Port};

/// Bytes in flight between the host and a fake guest.
const PIPE: usize = 64 * 1024;

/// A backend for tests.
#[derive(Clone, Default)]
pub struct FakeBackend {
    machines: Arc<Mutex<HashMap<SandboxId, Machine>>>,
    fail_create: Arc<Mutex<Option<String>>>,
}

struct Machine {
    port: Port,
    guest: FakeGuest,
    running: JoinHandle<()>,
    exited: watch::Sender<Option<String>>,
}

impl FakeBackend {
    /// Makes every later `create` fail with this sentence; `None` heals it.
    pub fn fail_create(&self, why: Option<&str>) {
        *lock(&self.fail_create) = why.map(str::to_owned);
    }

    /// Ends a machine from outside, as a crash would.
    pub fn crash(&self, id: &SandboxId, why: &str) {
        if let Some(machine) = self.machines().get(id) {
            machine.running.abort();
            machine.port.close();
            machine.exited.send_replace(Some(why.to_owned()));
        }
    }

    /// The guest of a sandbox, to look at what it was told.
    pub fn guest(&self, id: &SandboxId) -> Option<FakeGuest> {
        self.machines().get(id).map(|machine| machine.guest.clone())
    }

    fn machines(&self) -> MutexGuard<'_, HashMap<SandboxId, Machine>> {
        lock(&self.machines)
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("machines", &self.machines().len()).finish()
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn isolation(&self) -> IsolationClass {
        // It claims the class of the machines it stands in for, so that tests
        // of everything above it need no special case.
        IsolationClass::Microvm
    }

    async fn prepare(&self, _: &SandboxSpec) -> Result<(), BackendError> {
        Ok(())
    }

    async fn create(&self, id: &SandboxId, _: &SandboxSpec) -> Result<(), BackendError> {
        if let Some(why) = lock(&self.fail_create).clone() {
            return Err(BackendError::failed("making the machine", why));
        }
        let mut machines = self.machines();
        if machines.contains_key(id) {
            return Ok(());
        }
        let (port, guest) = (Port::default(), FakeGuest::default());
        let running = tokio::spawn(guest.clone().run(port.clone()));
        let (exited, _) = watch::channel(None);
        machines.insert(id.clone(), Machine { port, guest, running, exited });
        Ok(())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, BackendError> {
        let machines = self.machines();
        let machine = machines.get(id).ok_or(BackendError::NotFound)?;
        let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(PIPE);
        machine.port.plug(far);
        Ok(Box::new(near))
    }

    async fn wait(&self, id: &SandboxId) -> String {
        let Some(mut exited) = self.machines().get(id).map(|machine| machine.exited.subscribe())
        else {
            return "there is no such machine".into();
        };
        match exited.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "it was removed".into(),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), BackendError> {
        if let Some(machine) = self.machines().remove(id) {
            machine.running.abort();
            machine.port.close();
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxId>, BackendError> {
        Ok(self.machines().keys().cloned().collect())
    }

    async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, BackendError> {
        let known = self.machines().contains_key(id);
        if known { Ok(b"fake console\n".to_vec()) } else { Err(BackendError::NotFound) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
