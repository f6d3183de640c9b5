//! Starts that are under way, so that a repeated request can wait for the first.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use domain::id::SandboxId;
use tokio::sync::watch;

/// The starts of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Arc<Mutex<HashMap<SandboxId, watch::Receiver<()>>>>);

/// Held for as long as a start is under way. Dropping it tells everyone who
/// waits, also when the start panicked.
#[derive(Debug)]
pub(crate) struct Start {
    id: SandboxId,
    starts: Starts,
    _over: watch::Sender<()>,
}

impl Starts {
    /// Says that a start begins.
    pub(crate) fn begin(&self, id: SandboxId) -> Start {
        let (sender, receiver) = watch::channel(());
        self.lock().insert(id.clone(), receiver);
        Start { id, starts: self.clone(), _over: sender }
    }

    /// Waits until no start of `id` is under way.
    pub(crate) async fn over(&self, id: &SandboxId) {
        let under_way = self.lock().get(id).cloned();
        if let Some(mut receiver) = under_way {
            while receiver.changed().await.is_ok() {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, watch::Receiver<()>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        self.starts.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_learns_that_a_start_is_over() {
        let starts = Starts::default();
        let id = SandboxId::from_random([1; 16]);
        let start = starts.begin(id.clone());
        let waiting = tokio::spawn({
            let (starts, id) = (starts.clone(), id.clone());
            async move { starts.over(&id).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(start);
        waiting.await.expect("the waiting task ends");
        starts.over(&id).await;
    }
}
