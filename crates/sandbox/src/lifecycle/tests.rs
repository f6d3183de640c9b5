//! Paths through a life, by hand and by chance.

use proptest::prelude::*;

use super::*;

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::GuestReady),
        1 => Just(Event::StartFailed("s".into())),
        1 => Just(Event::Stop(Ending::new(Cause::Requested, "asked"))),
        1 => Just(Event::Stop(Ending::new(Cause::TimeLimit, "time"))),
        1 => Just(Event::MachineExited("m".into())),
        1 => Just(Event::GuestLost("g".into())),
        3 => Just(Event::Capture(Then::Continue)),
        3 => Just(Event::Capture(Then::Hold)),
        3 => Just(Event::Captured),
        2 => Just(Event::CaptureFailed),
        3 => Just(Event::Recorded),
        1 => Just(Event::Refused("r".into())),
        1 => Just(Event::Removed),
    ]
}

/// How drivers begin.
fn any_beginning() -> impl Strategy<Value = State> {
    prop_oneof![Just(State::Provisioning), Just(State::Resuming), Just(State::Running)]
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(any_event(), 0..40)
}

fn run(from: State, events: &[Event]) -> (State, Vec<Action>) {
    let mut actions = Vec::new();
    let state = events.iter().fold(from, |state, event| {
        let (state, action) = step(state, event.clone());
        actions.push(action);
        state
    });
    (state, actions)
}

fn stop() -> Event {
    Event::Stop(Ending::new(Cause::Requested, "asked"))
}

fn has_machine(state: &State) -> bool {
    !matches!(state, State::Shelving(_) | State::Paused(_) | State::Stopping(_) | State::Ended(_))
}

#[test]
fn a_sandbox_lives_and_is_stopped() {
    let events = [Event::GuestReady, Event::Recorded, stop(), Event::Removed];
    let (state, actions) = run(State::Provisioning, &events);
    assert_eq!(state, State::Ended(Ending::new(Cause::Requested, "asked")));
    let expected =
        [Action::Record(Fact::Running), Action::Nothing, Action::Remove, Action::AnnounceEnd];
    assert_eq!(actions, expected);
}

/// S33: a pause is on record before its machine is removed.
#[test]
fn a_sandbox_is_paused() {
    let events =
        [Event::Capture(Then::Hold), Event::Captured, Event::Recorded, stop(), Event::Removed];
    let (state, actions) = run(State::Running, &events);
    assert_eq!(state, State::Paused(Shelved::Asked));
    let expected = [
        Action::Capture(Then::Hold),
        Action::Record(Fact::Paused),
        Action::Remove,
        // It is too late to stop it: what is left is for its owner to end.
        Action::Nothing,
        Action::AnnounceEnd,
    ];
    assert_eq!(actions, expected);
}

/// K3: a snapshot that fails leaves a running sandbox.
#[test]
fn a_failed_pause_leaves_it_running() {
    let refused = [Event::Captured, Event::Refused("ended".into())];
    for events in [&[Event::CaptureFailed][..], &refused] {
        let events = [&[Event::Capture(Then::Hold)], events].concat();
        let (state, actions) = run(State::Running, &events);
        assert_eq!(state, State::Running);
        assert_eq!(actions.last(), Some(&Action::Proceed));
    }
}

/// K14: a resume that fails leaves a paused sandbox, and says why.
#[test]
fn a_failed_resume_leaves_it_paused() {
    let (state, _) =
        run(State::Resuming, &[Event::StartFailed("no memory".into()), Event::Removed]);
    assert_eq!(state, State::Paused(Shelved::NotResumed("no memory".into())));
}

/// K16: what cannot start fails with its cause.
#[test]
fn a_failed_start_keeps_its_cause() {
    let events = [Event::StartFailed("no space".into()), stop(), Event::Removed];
    let (state, _) = run(State::Provisioning, &events);
    assert_eq!(state, State::Ended(Ending::new(Cause::StartFailed, "no space")));
}

proptest! {
    /// A sandbox can be stopped from every state that has a machine.
    #[test]
    fn stopping_always_leads_to_an_end(from in any_beginning(), events in any_events()) {
        let mut events = events;
        events.extend([stop(), Event::Removed]);
        let end = run(from, &events).0;
        prop_assert!(matches!(end, State::Ended(_) | State::Paused(_)));
    }

    /// `Ended` and `Paused` are final, and the first ending is the one that counts.
    #[test]
    fn an_end_never_changes(from in any_beginning(), events in any_events()) {
        let mut end: Option<State> = None;
        let mut state = from;
        for event in events {
            state = step(state, event).0;
            let now = match &state {
                State::Stopping(ending) | State::Ended(ending) => State::Ended(ending.clone()),
                State::Shelving(why) | State::Paused(why) => State::Paused(why.clone()),
                _ => {
                    prop_assert!(end.is_none(), "a sandbox came back from its end");
                    continue;
                }
            };
            prop_assert_eq!(end.get_or_insert_with(|| now.clone()), &now);
        }
    }

    /// The machine is removed exactly once on every way to an end.
    #[test]
    fn the_machine_is_removed_once(from in any_beginning(), events in any_events()) {
        let (state, actions) = run(from, &events);
        let removals = actions.iter().filter(|action| **action == Action::Remove).count();
        prop_assert_eq!(removals, usize::from(!has_machine(&state)));
    }

    /// A sandbox is never lost: each way out of a state with a machine keeps it
    /// running, ends it with a reason, or leaves a snapshot that is whole.
    #[test]
    fn a_sandbox_is_never_lost(from in any_beginning(), events in any_events()) {
        // Whether there is a whole snapshot of all that it did.
        let mut whole = from == State::Resuming;
        let mut state = from;
        for event in events {
            let before = state.clone();
            let (after, action) = step(state, event.clone());
            match (&before, &event) {
                (State::Pausing, Event::Captured) => whole = true,
                // It goes on and does what no snapshot holds.
                _ if after == State::Running => whole = false,
                _ => {}
            }
            if let State::Shelving(_) | State::Paused(_) = after {
                prop_assert!(whole, "{before:?} on {event:?} left nothing");
            }
            // A machine that was held goes on when its pause comes to nothing.
            if matches!(before, State::Pausing | State::Held) && after == State::Running {
                prop_assert_eq!(action, Action::Proceed);
            }
            state = after;
        }
    }

    /// Nobody hears of what is not on record.
    #[test]
    fn what_is_told_was_recorded(from in any_beginning(), events in any_events()) {
        let mut state = from;
        for event in events {
            let before = state.clone();
            state = step(state, event.clone()).0;
            let told = matches!(
                (&before, &state),
                (State::Provisioning | State::Resuming, State::Running)
                    | (State::Held, State::Shelving(_))
            );
            prop_assert_eq!(told && event != Event::Recorded, false);
        }
    }
}
