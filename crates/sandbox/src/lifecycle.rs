//! The life of one sandbox, as a function from what we know to what we do next.
//!
//! ```text
//!  Provisioning ──► Running
//!       │              │
//!       └──────┬───────┘
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
//! - `Ended` is final.
//! - A sandbox can be stopped from every state; asking twice is not an error,
//!   and the first ending is the one that counts.
//! - The machine is removed on every way to `Ended`.
//!
//! Absent: time limits and deadlines (the driver's), persistence (the ledger's).

use domain::ending::{Cause, Ending};

/// Where a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Recorded. Its machine is being made and the guest has not answered.
    Provisioning,
    /// The guest answered and has its identity.
    Running,
    /// The machine is being removed.
    Stopping(Ending),
    /// Nothing of it is left. Final.
    Ended(Ending),
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
    /// Everything of the machine is removed.
    Removed,
}

/// What the driver must do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Record that it runs, then answer whoever waits.
    AnnounceRunning,
    /// Remove the machine.
    Remove,
    /// Record the ending, then answer whoever waits.
    AnnounceEnded,
}

/// The state that follows `state` on `event`, and what to do.
pub fn step(state: State, event: Event) -> (State, Action) {
    use {Event::*, State::*};
    match (state, event) {
        (Provisioning, GuestReady) => (Running, Action::AnnounceRunning),
        (Provisioning, StartFailed(why) | MachineExited(why) | GuestLost(why)) => {
            (Stopping(Ending::new(Cause::StartFailed, why)), Action::Remove)
        }
        (Running, MachineExited(why) | StartFailed(why)) => {
            (Stopping(Ending::new(Cause::MachineExited, why)), Action::Remove)
        }
        (Running, GuestLost(why)) => (Stopping(Ending::new(Cause::GuestLost, why)), Action::Remove),
        (Provisioning | Running, Stop(ending)) => (Stopping(ending), Action::Remove),

        (Stopping(ending), Removed) => (Ended(ending), Action::AnnounceEnded),

        // The first ending counts, and a guest that becomes ready while its
        // machine is being removed changes nothing.
        (
            state @ Stopping(_),
            GuestReady | StartFailed(_) | Stop(_) | MachineExited(_) | GuestLost(_),
        ) => (state, Action::Nothing),
        (Running, GuestReady) => (Running, Action::Nothing),
        (state @ (Provisioning | Running), Removed) => (state, Action::Nothing),
        (
            state @ Ended(_),
            GuestReady | StartFailed(_) | Stop(_) | MachineExited(_) | GuestLost(_) | Removed,
        ) => (state, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::GuestReady),
            Just(Event::StartFailed("s".into())),
            Just(Event::Stop(Ending::new(Cause::Requested, "asked"))),
            Just(Event::Stop(Ending::new(Cause::TimeLimit, "time"))),
            Just(Event::MachineExited("m".into())),
            Just(Event::GuestLost("g".into())),
            Just(Event::Removed),
        ]
    }

    fn run(events: &[Event]) -> (State, Vec<Action>) {
        let mut actions = Vec::new();
        let state = events.iter().fold(State::Provisioning, |state, event| {
            let (state, action) = step(state, event.clone());
            actions.push(action);
            state
        });
        (state, actions)
    }

    fn stop() -> Event {
        Event::Stop(Ending::new(Cause::Requested, "asked"))
    }

    #[test]
    fn a_sandbox_lives_and_is_stopped() {
        let (state, actions) = run(&[Event::GuestReady, stop(), Event::Removed]);
        assert_eq!(state, State::Ended(Ending::new(Cause::Requested, "asked")));
        assert_eq!(actions, [Action::AnnounceRunning, Action::Remove, Action::AnnounceEnded]);
    }

    /// K16: what cannot start fails with its cause.
    #[test]
    fn a_failed_start_keeps_its_cause() {
        let (state, _) = run(&[Event::StartFailed("no space".into()), stop(), Event::Removed]);
        assert_eq!(state, State::Ended(Ending::new(Cause::StartFailed, "no space")));
    }

    proptest! {
        /// A sandbox can be stopped from every state.
        #[test]
        fn stopping_always_leads_to_the_end(events in prop::collection::vec(any_event(), 0..20)) {
            let mut events = events;
            events.extend([stop(), Event::Removed]);
            prop_assert!(matches!(run(&events).0, State::Ended(_)));
        }

        /// `Ended` is final, and the first ending is the one that counts.
        #[test]
        fn an_ending_never_changes(events in prop::collection::vec(any_event(), 0..20)) {
            let mut ending: Option<Ending> = None;
            let mut state = State::Provisioning;
            for event in events {
                state = step(state, event).0;
                if let State::Stopping(now) | State::Ended(now) = &state {
                    prop_assert_eq!(ending.get_or_insert_with(|| now.clone()), now);
                } else {
                    prop_assert!(ending.is_none(), "a sandbox came back from its end");
                }
            }
        }

        /// The machine is removed exactly once on every way to the end.
        #[test]
        fn the_machine_is_removed_once(events in prop::collection::vec(any_event(), 0..20)) {
            let (state, actions) = run(&events);
            let removals = actions.iter().filter(|action| **action == Action::Remove).count();
            let ended = matches!(state, State::Stopping(_) | State::Ended(_));
            prop_assert_eq!(removals, usize::from(ended));
        }
    }
}
