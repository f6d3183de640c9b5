//! Pauses, resumes and copies that are under way, one at a time for each sandbox.
//!
//! Of simultaneous wishes for the same thing one is done and the others wait for
//! what comes of it; a wish for something else is told that the sandbox is busy.
//! This orders the wishes of one process. What holds across processes are the
//! compare-and-sets of the store.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use domain::{id::SandboxId, time::Timestamp};
use tokio::sync::watch;

use crate::error::Error;

/// What is done to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pause,
    Resume,
    Copy,
}

/// What came of it, for everybody who waits.
type Outcome = Result<(), Arc<Error>>;

/// The moves of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    under_way: Mutex<HashMap<SandboxId, UnderWay>>,
    /// Sandboxes that are not to be paused by themselves before this time,
    /// because that failed.
    put_off: Mutex<HashMap<SandboxId, Timestamp>>,
}

#[derive(Debug)]
struct UnderWay {
    kind: Kind,
    outcome: watch::Receiver<Option<Outcome>>,
}

/// Held for as long as a move is under way. Dropping it without an outcome tells
/// everyone who waits that there is none.
#[derive(Debug)]
pub(crate) struct Move {
    id: SandboxId,
    moves: Moves,
    outcome: watch::Sender<Option<Outcome>>,
}

/// Waits for what comes of a move.
#[derive(Debug)]
pub(crate) struct Waiting(watch::Receiver<Option<Outcome>>);

/// What became of a wish.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is the first of its kind, and nothing else is under way.
    First(Move, Waiting),
    /// The same is under way already.
    Joined(Waiting),
    /// Something else is.
    Busy(Kind),
}

impl Kind {
    /// In a sentence that begins with "the sandbox is being".
    pub(crate) fn being(self) -> &'static str {
        match self {
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Copy => "copied",
        }
    }
}

impl Moves {
    /// Begins a move or joins one.
    pub(crate) fn begin(&self, id: &SandboxId, kind: Kind) -> Begun {
        match self.lock().entry(id.clone()) {
            Entry::Occupied(entry) if entry.get().kind == kind && kind != Kind::Copy => {
                Begun::Joined(Waiting(entry.get().outcome.clone()))
            }
            Entry::Occupied(entry) => Begun::Busy(entry.get().kind),
            Entry::Vacant(entry) => {
                let (sender, outcome) = watch::channel(None);
                entry.insert(UnderWay { kind, outcome: outcome.clone() });
                let begun = Move { id: id.clone(), moves: self.clone(), outcome: sender };
                Begun::First(begun, Waiting(outcome))
            }
        }
    }

    /// Waits until a sandbox is neither being paused nor resumed.
    pub(crate) async fn settled(&self, id: &SandboxId) {
        let under_way = {
            let all = self.lock();
            let moving = all.get(id).filter(|move_| move_.kind != Kind::Copy);
            moving.map(|move_| move_.outcome.clone())
        };
        if let Some(mut outcome) = under_way {
            while outcome.changed().await.is_ok() {}
        }
    }

    /// Whether something is under way with a sandbox.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.lock().contains_key(id)
    }

    /// Whether a sandbox is being paused.
    pub(crate) fn is_pausing(&self, id: &SandboxId) -> bool {
        self.lock().get(id).is_some_and(|move_| move_.kind == Kind::Pause)
    }

    /// Puts off what is done without being asked for.
    pub(crate) fn put_off(&self, id: &SandboxId, until: Timestamp) {
        held(&self.0.put_off).insert(id.clone(), until);
    }

    /// Whether what was put off may be done now.
    pub(crate) fn may_retry(&self, id: &SandboxId, now: Timestamp) -> bool {
        let mut put_off = held(&self.0.put_off);
        put_off.retain(|_, until| *until > now);
        !put_off.contains_key(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, UnderWay>> {
        held(&self.0.under_way)
    }
}

impl Move {
    /// Tells everyone who waits. From here on the next move may begin.
    pub(crate) fn end(self, outcome: Result<(), Error>) {
        let mut moves = self.moves.lock();
        moves.remove(&self.id);
        self.outcome.send_replace(Some(outcome.map_err(Arc::new)));
        drop(moves);
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        // One that ended is out of the map, and the next may be in it.
        if self.outcome.borrow().is_none() {
            self.moves.lock().remove(&self.id);
        }
    }
}

impl Waiting {
    /// Waits. A move that ended without an outcome was cut short by the end of
    /// the server.
    pub(crate) async fn outcome(mut self) -> Result<(), Error> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => match outcome.as_ref() {
                Some(Err(error)) => Err(error.shared()),
                Some(Ok(())) | None => Ok(()),
            },
            Err(_) => Err(Error::Unavailable {
                detail: "the server is shutting down; look at the state of the sandbox",
                source: None,
            }),
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_wish_joins_and_another_is_told_to_wait() {
        let moves = Moves::default();
        let id = SandboxId::from_random([1; 16]);
        let Begun::First(first, waiting) = moves.begin(&id, Kind::Pause) else { panic!() };
        let Begun::Joined(joined) = moves.begin(&id, Kind::Pause) else { panic!() };
        assert!(matches!(moves.begin(&id, Kind::Resume), Begun::Busy(Kind::Pause)));
        first.end(Err(Error::NotFound { noun: "sandbox" }));
        let Begun::First(second, _) = moves.begin(&id, Kind::Resume) else { panic!() };
        for waiting in [waiting, joined] {
            assert_eq!(waiting.outcome().await.expect_err("it failed").code(), "not_found");
        }
        assert!(moves.has(&id));
        drop(second);
        assert!(!moves.has(&id), "a move that was dropped is still under way");
        moves.settled(&id).await;
    }

    #[tokio::test]
    async fn two_copies_are_two_wishes() {
        let moves = Moves::default();
        let id = SandboxId::from_random([1; 16]);
        let _first = moves.begin(&id, Kind::Copy);
        assert!(matches!(moves.begin(&id, Kind::Copy), Begun::Busy(Kind::Copy)));
    }
}
