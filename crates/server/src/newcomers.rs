//! Connections that have not shown a good token yet.
//!
//! Whoever can reach the port can connect, so what strangers hold is bounded
//! apart from what is left for callers: by time, counted from the connection to
//! the first request with a good token, and by number. When there are too many,
//! the one that came first is cut off in favour of the one that comes. A caller
//! sends its request at once and needs the place for a moment; so it gets
//! through while strangers push each other out, and the server never stops
//! accepting on their account.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Everybody who has no place of their own yet. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Newcomers {
    crowd: Arc<Mutex<Crowd>>,
    most: usize,
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Crowd {
    next: u64,
    /// In the order in which they came.
    waiting: BTreeMap<u64, CancellationToken>,
}

/// One connection. Clones are the same one; the last that is dropped leaves.
#[derive(Clone, Debug)]
pub(crate) struct Visitor(Arc<Visit>);

#[derive(Debug)]
struct Visit {
    number: u64,
    newcomers: Newcomers,
    pushed_out: CancellationToken,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Newcomers {
    /// Room for `most` strangers, and for `places` callers beside them.
    pub(crate) fn new(most: usize, places: usize) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self { crowd: Arc::default(), most: most.max(1), places }
    }

    /// Lets somebody in, and out whoever has been there longest if need be.
    pub(crate) fn enter(&self) -> Visitor {
        let pushed_out = CancellationToken::new();
        let mut crowd = lock(&self.crowd);
        let number = crowd.next;
        crowd.next += 1;
        crowd.waiting.insert(number, pushed_out.clone());
        while crowd.waiting.len() > self.most {
            if let Some((_, oldest)) = crowd.waiting.pop_first() {
                oldest.cancel();
            }
        }
        drop(crowd);
        let place = Mutex::default();
        Visitor(Arc::new(Visit { number, newcomers: self.clone(), pushed_out, place }))
    }
}

impl Visitor {
    /// Cancelled when somebody else needs the room.
    pub(crate) fn pushed_out(&self) -> &CancellationToken {
        &self.0.pushed_out
    }

    /// Whether it has a place of its own.
    pub(crate) fn is_settled(&self) -> bool {
        lock(&self.0.place).is_some()
    }

    /// Gives it a place of its own, if there is one. Asking again is free.
    pub(crate) fn settle(&self) -> bool {
        let mut place = lock(&self.0.place);
        if place.is_none() {
            *place = Arc::clone(&self.0.newcomers.places).try_acquire_owned().ok();
            if place.is_some() {
                lock(&self.0.newcomers.crowd).waiting.remove(&self.0.number);
            }
        }
        place.is_some()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        lock(&self.newcomers.crowd).waiting.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_push_each_other_out_and_nobody_who_has_a_place() {
        let newcomers = Newcomers::new(2, 1);
        let caller = newcomers.enter();
        assert!(!caller.is_settled() && caller.settle() && caller.settle());
        let strangers: Vec<_> = (0..5).map(|_| newcomers.enter()).collect();
        let out = |visitor: &Visitor| visitor.pushed_out().is_cancelled();
        assert_eq!(strangers.iter().map(out).collect::<Vec<_>>(), [true, true, true, false, false]);
        assert!(!out(&caller));
        // There is one place, and it is taken for as long as its caller stays.
        assert!(!strangers[4].settle());
        drop(caller);
        assert!(strangers[4].settle());
    }

    #[test]
    fn whoever_leaves_makes_room() {
        let newcomers = Newcomers::new(1, 1);
        drop(newcomers.enter());
        let stays = newcomers.enter();
        assert!(!stays.pushed_out().is_cancelled());
        assert_eq!(lock(&newcomers.crowd).waiting.len(), 1);
    }
}
