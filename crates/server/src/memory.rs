//! What all requests together may hold in memory.
//!
//! Most requests need next to nothing, because bodies stream. The few that are
//! read whole (JSON, the first message of a start) or kept (the output of exec)
//! take from one budget as they grow. So a thousand connections with the largest
//! request each cannot add up to more than the budget, and nobody pays for a
//! limit that is not used.
//!
//! The budget counts bytes held for a client's sake, once. Reading JSON into
//! fields and writing it again takes some multiple of that for a moment.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the budget. Small requests take one.
const UNIT: usize = 16 * 1024;

/// The budget. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Semaphore>);

/// A share of the budget, given back on drop.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Memory,
    permit: Option<OwnedSemaphorePermit>,
    used: usize,
}

impl Memory {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    /// A share that holds nothing yet.
    pub(crate) fn share(&self) -> Share {
        Share { memory: self.clone(), permit: None, used: 0 }
    }
}

impl Share {
    /// Takes `more` bytes, or nothing if the budget has not so much left.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (self.used + more).div_ceil(UNIT).saturating_sub(held);
        if missing > 0 {
            let Ok(missing) = u32::try_from(missing) else { return false };
            let Ok(taken) = Arc::clone(&self.memory.0).try_acquire_many_owned(missing) else {
                return false;
            };
            match &mut self.permit {
                Some(permit) => permit.merge(taken),
                None => self.permit = Some(taken),
            }
        }
        self.used += more;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_together_never_exceed_the_budget() {
        let memory = Memory::new(4 * UNIT);
        let (mut one, mut other) = (memory.share(), memory.share());
        assert!(one.grow(1) && one.grow(UNIT - 1), "what fits into a unit takes one");
        assert!(other.grow(3 * UNIT));
        assert!(!one.grow(1));
        assert!(one.grow(0));
        drop(other);
        assert!(one.grow(3 * UNIT));
        assert!(!memory.share().grow(1));
        drop(one);
        assert!(memory.share().grow(4 * UNIT));
    }
}
