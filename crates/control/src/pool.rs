//! Machines that are made before anybody asks for them.
//!
//! A machine of the pool is a clone that nobody is yet: it has an id, a folder
//! and memory; no guest was greeted, and no row knows it. A claim is a transfer:
//! the sandbox that is created takes the id, and its driver finds the machine
//! made. So identity, randomness and variables are given at the claim and never
//! before, no list shows a machine of the pool, and what a server leaves that is
//! killed is a machine that nobody remembers, which the next one removes.
//!
//! The operator says how many of which template and size, and how much memory
//! they may take together; without that there is no pool.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use domain::{
    id::SandboxId,
    image::{Image, ImageName, digest::Digest},
    size::{Resources, SizeClass},
};
use sandbox::spec::{SandboxSpec, Source};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::Control;

/// Between two looks at what is missing.
const ROUND: Duration = Duration::from_secs(2);
/// After a machine could not be made.
const AGAIN: Duration = Duration::from_secs(30);

/// What an operator wants to be ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    /// How many of what.
    pub ready: Vec<Ready>,
    /// The most memory that they may take together, in MiB.
    pub memory_mib: u64,
}

/// How many machines of one kind are kept ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The template.
    pub template: ImageName,
    /// The size.
    pub size: SizeClass,
    /// How many.
    pub count: u32,
}

/// The machines that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    id: SandboxId,
    image: Digest,
    resources: Resources,
    /// Notices when the machine ends by itself.
    watch: AbortHandle,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Waiting {
    fn is(&self, image: Digest, resources: Resources) -> bool {
        self.image == image && self.resources == resources
    }
}

impl Pool {
    /// Takes a machine of this kind out. Whoever has the id owns the machine.
    pub(crate) fn claim(&self, image: Digest, resources: Resources) -> Option<SandboxId> {
        let mut waiting = self.lock();
        let found = waiting.iter().position(|one| one.is(image, resources))?;
        Some(waiting.remove(found).id.clone())
    }

    /// Takes out what is not to stay.
    fn take(&self, leaves: impl Fn(&Waiting) -> bool) -> Vec<SandboxId> {
        let taken: Vec<_> = self.lock().extract_if(.., |one| leaves(one)).collect();
        taken.iter().map(|one| one.id.clone()).collect()
    }

    fn memory_mib(&self) -> u64 {
        self.lock().iter().map(|one| u64::from(one.resources.memory_mib)).sum()
    }

    fn count(&self, image: Digest, resources: Resources) -> usize {
        self.lock().iter().filter(|one| one.is(image, resources)).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Keeps the pool filled until `stop`, then empties it.
    pub(crate) async fn keep_pool(&self, stop: &CancellationToken) {
        if self.settings().pool.ready.is_empty() {
            return;
        }
        loop {
            let pause = tokio::select! {
                () = stop.cancelled() => break,
                filled = self.fill_pool() => if filled { ROUND } else { AGAIN },
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        for id in self.pool().take(|_| true) {
            self.unmake(&id).await;
        }
    }

    /// Brings the pool to what is wanted, one machine after another. Returns
    /// whether there is nothing that could not be made.
    ///
    /// A machine that is being made when this is dropped is on the backend and in
    /// no list; the next start removes it.
    pub async fn fill_pool(&self) -> bool {
        let wanted = &self.settings().pool;
        let mut kinds = Vec::new();
        for ready in &wanted.ready {
            match self.images().verified(&ready.template).await {
                Ok(image) => kinds.push((image, Resources::of(ready.size), ready.count)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(template = %ready.template, error, "no machine of this template can be kept ready");
                }
            }
        }
        // Of an image that was replaced nothing is started any more.
        let stays =
            |one: &Waiting| kinds.iter().any(|(image, size, _)| one.is(image.digest, *size));
        for id in self.pool().take(|one| !stays(one)) {
            self.unmake(&id).await;
        }
        let mut made = kinds.len() == wanted.ready.len();
        for (image, resources, count) in &kinds {
            while self.pool().count(image.digest, *resources) < *count as usize {
                let fits = self.pool().memory_mib() + u64::from(resources.memory_mib);
                if fits > wanted.memory_mib {
                    return made;
                }
                if !self.make_ready(image, *resources).await {
                    made = false;
                    break;
                }
            }
        }
        made
    }

    async fn make_ready(&self, image: &Image, resources: Resources) -> bool {
        let id = SandboxId::from_random(self.random());
        let spec = SandboxSpec {
            image: image.clone(),
            resources,
            source: Source::Template,
            disks: Vec::new(),
        };
        if let Err(error) = self.host().make_ready(&id, &spec).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "a machine for the pool could not be made");
            return false;
        }
        let (control, watched) = (self.clone(), id.clone());
        // Owned by its entry in the pool, which ends it.
        let watch = tokio::spawn(async move {
            control.host().gone(&watched).await;
            tracing::warn!(sandbox.id = %watched, "a machine of the pool ended");
            control.unmake(&watched).await;
            // Last, because this ends with its entry.
            control.pool().take(|one| one.id == watched);
        });
        let watch = watch.abort_handle();
        self.pool().lock().push(Waiting { id, image: image.digest, resources, watch });
        true
    }

    /// Removes a machine that nobody owns.
    pub(crate) async fn unmake(&self, id: &SandboxId) {
        if let Err(error) = self.host().unmake(id).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(sandbox.id = %id, error, "a machine of the pool was not removed; the next start does");
        }
    }
}
