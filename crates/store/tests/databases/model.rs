//! Transitions, against a model of a few lines.

use domain::{
    ending::{Cause, Ending},
    phase::Phase,
    time::Timestamp,
};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};
use store::{
    Store,
    sandboxes::{
        Moved, Sandbox,
        rest::{Rest, Woken},
    },
    snapshots::Purpose,
};

use crate::{
    fixture::{added, line, organization},
    snapshots::{BYTES, KEPT, add_one, snapshot},
};

/// How many sequences are tried. Each begins with a sandbox of its own.
const SEQUENCES: u32 = 40;

#[derive(Clone, Debug)]
enum Step {
    Running,
    Ending(Cause),
    Ended(Cause),
    Expiry(i64),
    Pause,
    Wake,
    Resumed,
    NotResumed,
}

fn any_step() -> impl Strategy<Value = Step> {
    let cause = || prop::sample::select(&Cause::ALL);
    prop_oneof![
        2 => Just(Step::Running),
        1 => cause().prop_map(Step::Ending),
        1 => cause().prop_map(Step::Ended),
        1 => (0..1_000_000_i64).prop_map(Step::Expiry),
        3 => Just(Step::Pause),
        3 => Just(Step::Wake),
        2 => Just(Step::Resumed),
        1 => Just(Step::NotResumed),
    ]
}

/// What the row becomes, or nothing when the step is refused.
fn model(mut row: Sandbox, step: &Step, now: Timestamp) -> Option<Sandbox> {
    let live = !row.phase.is_final();
    match step {
        Step::Running if row.phase == Phase::Provisioning && row.intent.is_none() => {
            row.phase = Phase::Running;
            row.started = Some(now);
            row.expires = Some(now.plus(row.timeout));
        }
        Step::Ending(cause) if live && row.intent.is_none() => row.intent = Some(*cause),
        Step::Ended(cause) if live => {
            row.phase = cause.phase();
            row.ending = Some(Ending::new(*cause, "why"));
            row.ended = Some(now);
            row.rest.waking = false;
        }
        Step::Pause if row.phase == Phase::Running && row.intent.is_none() => {
            let left = row.expires.map(|expires| now.until(expires)).filter(|left| !left.is_zero());
            row.phase = Phase::Paused;
            row.rest.paused = Some(now);
            row.rest.remaining = Some(left.unwrap_or(row.timeout));
            row.expires = Some(KEPT);
        }
        Step::Wake if row.phase == Phase::Paused && row.intent.is_none() && !row.rest.waking => {
            row.rest.waking = true;
        }
        Step::Resumed if row.phase == Phase::Paused && row.intent.is_none() && row.rest.waking => {
            row.phase = Phase::Running;
            row.expires = Some(now.plus(row.rest.remaining.unwrap_or_default()));
            row.rest = Rest::default();
        }
        Step::NotResumed if row.phase == Phase::Paused && row.rest.waking => {
            row.rest.waking = false;
        }
        Step::Expiry(time) if row.phase == Phase::Running && row.intent.is_none() => {
            row.expires = Some(Timestamp(*time));
        }
        Step::Running
        | Step::Ending(_)
        | Step::Ended(_)
        | Step::Expiry(_)
        | Step::Pause
        | Step::Wake
        | Step::Resumed
        | Step::NotResumed => return None,
    }
    row.generation += 1;
    Some(row)
}

/// Final phases are final, no transition is lost, and a refused one changes nothing.
pub(crate) async fn transitions_are_those_of_the_model(store: Store) {
    let tenant = organization(&store).await;
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let sequences = prop::collection::vec(any_step(), 1..14);
    for _ in 0..SEQUENCES {
        let steps = sequences.new_tree(&mut runner).expect("a sequence").current();
        let mut expected = added(&store, &tenant).await;
        for (index, step) in steps.iter().enumerate() {
            let now = Timestamp(index as i64);
            let moved = apply(&store, &expected, step, now).await;
            let next = model(expected.clone(), step, now);
            assert_eq!(moved == Moved::Yes, next.is_some(), "{step:?} of {steps:?}");
            expected = next.unwrap_or(expected);
            let row = store.sandbox(&expected.id).await.expect("read").expect("it is kept");
            assert_eq!(row, expected, "{step:?} of {steps:?}");
        }
    }
}

async fn apply(store: &Store, row: &Sandbox, step: &Step, now: Timestamp) -> Moved {
    let line = line(&row.organization, "test", Some(row.id.as_str()));
    let moved = match step {
        Step::Running => store.mark_running(&row.id, now, &line).await,
        Step::Ending(cause) => store.mark_ending(&row.id, *cause, &line).await,
        Step::Ended(cause) => {
            store.mark_ended(&row.id, &Ending::new(*cause, "why"), now, &line).await
        }
        Step::Expiry(time) => store.set_sandbox_expiry(&row.id, Timestamp(*time), &line).await,
        Step::Pause => {
            let making = snapshot(row, Purpose::Pause, None);
            add_one(store, row, &making, u32::MAX).await;
            store.mark_paused(&row.id, &making.id, BYTES, (now, KEPT), &line).await
        }
        Step::Wake => {
            let woken = store.begin_waking(row, None, u32::MAX, &line).await;
            woken.map(|woken| if woken == Woken::Begun { Moved::Yes } else { Moved::No })
        }
        Step::Resumed => store.mark_resumed(&row.id, now, &line).await,
        Step::NotResumed => store.end_waking(&row.id, &line).await,
    };
    moved.expect("the store answers")
}
