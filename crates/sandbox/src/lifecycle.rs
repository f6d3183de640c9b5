//! The life of one sandbox, as a function from what we know to what we do next.
//!
//! ```text
//!  Provisioning ──► Running ◄──► Copying          Resuming
//!       │            ▲   │                         │    │
//!       │            │   ▼                         │    └──► Running
//!       │          Pausing ─► Held ─► Shelving ◄───┘
//!       │             │        │         └──► Paused
//!       └──────┬──────┘
//!              ▼
//!        Stopping(ending) ──► Ended(ending)
//! ```
//!
//! This module decides; it never acts. [`step`] takes a state and an event and
//! returns the next state and what must be done to be there. The driver does
//! it and feeds the outcome back as another event. One driver owns one sandbox,
//! so no two decisions about the same sandbox can race.
//!
//! Invariants:
//!
//! - `Ended` and `Paused` are final for a driver. A paused sandbox that is
//!   resumed gets a new one, which begins as `Resuming`.
//! - A sandbox can be stopped from every state that has a machine; asking twice
//!   is not an error, and the first ending is the one that counts.
//! - The machine is removed on every way to `Ended` and to `Paused`.
//! - Nobody hears that a sandbox runs, is paused or runs again before that is on
//!   record: those states are entered by [`Event::Recorded`] alone.
//! - A sandbox is paused only with a whole snapshot. What fails on the way to a
//!   pause leads back to `Running`, what fails on the way out of one back to
//!   `Paused`.
//!
//! Absent: time limits and deadlines (the driver's), persistence (the ledger's).

use domain::ending::{Cause, Ending};

use crate::backend::Then;

/// Where a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Recorded. Its machine is being made and the guest has not answered.
    Provisioning,
    /// Recorded as paused. Its machine is being made from its own snapshot.
    Resuming,
    /// The guest answered and has its identity.
    Running,
    /// It runs, and stands still for a moment while it is copied.
    Copying,
    /// Its machine is captured and will not go on unless that fails. Nobody is
    /// let in.
    Pausing,
    /// The snapshot is whole, and the pause is not on record yet.
    Held,
    /// The machine is being removed; the snapshot stays.
    Shelving(Shelved),
    /// Nothing but the snapshot is left. The end of a driver.
    Paused(Shelved),
    /// The machine is being removed.
    Stopping(Ending),
    /// Nothing of it is left. Final.
    Ended(Ending),
}

/// Why nothing but a snapshot is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shelved {
    /// Somebody wanted it so.
    Asked,
    /// It was to be resumed, and that failed.
    NotResumed(String),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest answered and took its identity.
    GuestReady,
    /// Making it failed.
    StartFailed(String),
    /// Somebody wants it gone, or its time is up.
    Stop(Ending),
    /// The machine is gone.
    MachineExited(String),
    /// The guest did not answer within its bound, again and again.
    GuestLost(String),
    /// Somebody wants a snapshot, and this to become of the machine.
    Capture(Then),
    /// The snapshot is whole.
    Captured,
    /// There is no snapshot.
    CaptureFailed,
    /// The fact that was to be recorded is on record.
    Recorded,
    /// The record says otherwise, and why.
    Refused(String),
    /// Everything of the machine is removed.
    Removed,
}

/// What goes on record before anyone is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// It runs for the first time.
    Running,
    /// It is paused.
    Paused,
    /// It runs again.
    Resumed,
}

/// What the driver must do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Record this, and say what came of it.
    Record(Fact),
    /// Capture the machine.
    Capture(Then),
    /// Let a machine go on that stands still.
    Proceed,
    /// Remove the machine.
    Remove,
    /// Answer whoever waits for the end; record it first if it is one.
    AnnounceEnd,
}

/// The state that follows `state` on `event`, and what to do.
pub fn step(state: State, event: Event) -> (State, Action) {
    use {Event::*, State::*};
    match (state, event) {
        (Provisioning, GuestReady) => (Provisioning, Action::Record(Fact::Running)),
        (Resuming, GuestReady) => (Resuming, Action::Record(Fact::Resumed)),
        (Provisioning | Resuming, Recorded) => (Running, Action::Nothing),
        (Provisioning, StartFailed(why) | MachineExited(why) | GuestLost(why) | Refused(why)) => {
            (Stopping(Ending::new(Cause::StartFailed, why)), Action::Remove)
        }
        (Resuming, StartFailed(why) | MachineExited(why) | GuestLost(why) | Refused(why)) => {
            (Shelving(Shelved::NotResumed(why)), Action::Remove)
        }

        (Running, Capture(Then::Continue)) => (Copying, Action::Capture(Then::Continue)),
        (Running, Capture(Then::Hold)) => (Pausing, Action::Capture(Then::Hold)),
        (Copying, Captured) => (Running, Action::Nothing),
        (Copying, CaptureFailed) => (Running, Action::Proceed),
        (Pausing, Captured) => (Held, Action::Record(Fact::Paused)),
        (Held, Recorded) => (Shelving(Shelved::Asked), Action::Remove),
        (Pausing, CaptureFailed) | (Held, Refused(_)) => (Running, Action::Proceed),

        (Running | Copying | Pausing | Held, MachineExited(why) | StartFailed(why)) => {
            (Stopping(Ending::new(Cause::MachineExited, why)), Action::Remove)
        }
        (Running | Copying | Pausing | Held, GuestLost(why)) => {
            (Stopping(Ending::new(Cause::GuestLost, why)), Action::Remove)
        }
        (Provisioning | Resuming | Running | Copying | Pausing | Held, Stop(ending)) => {
            (Stopping(ending), Action::Remove)
        }

        (Stopping(ending), Removed) => (Ended(ending), Action::AnnounceEnd),
        (Shelving(shelved), Removed) => (Paused(shelved), Action::AnnounceEnd),

        // The first ending counts, and a guest that becomes ready while its
        // machine is being removed changes nothing.
        (
            state @ (Stopping(_) | Shelving(_)),
            GuestReady | StartFailed(_) | Stop(_) | MachineExited(_) | GuestLost(_) | Capture(_)
            | Captured | CaptureFailed | Recorded | Refused(_),
        ) => (state, Action::Nothing),
        (state @ (Running | Copying | Pausing | Held), GuestReady | Removed) => {
            (state, Action::Nothing)
        }
        (state @ Running, Captured | CaptureFailed | Recorded | Refused(_)) => {
            (state, Action::Nothing)
        }
        (state @ (Copying | Pausing), Capture(_) | Recorded | Refused(_)) => {
            (state, Action::Nothing)
        }
        (state @ Held, Capture(_) | Captured | CaptureFailed) => (state, Action::Nothing),
        (state @ (Provisioning | Resuming), Capture(_) | Captured | CaptureFailed | Removed) => {
            (state, Action::Nothing)
        }
        (
            state @ (Ended(_) | Paused(_)),
            GuestReady | StartFailed(_) | Stop(_) | MachineExited(_) | GuestLost(_) | Capture(_)
            | Captured | CaptureFailed | Recorded | Refused(_) | Removed,
        ) => (state, Action::Nothing),
    }
}

#[cfg(test)]
mod tests;
