//! Transitions, against a model of eight lines.

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
    sandboxes::{Moved, Sandbox},
};

use crate::fixture::{added, line, organization};

/// How many sequences are tried. Each begins with a sandbox of its own.
const SEQUENCES: u32 = 40;

#[derive(Clone, Debug)]
enum Step {
    Running,
    Ending(Cause),
    Ended(Cause),
    Expiry(i64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let cause = || prop::sample::select(&Cause::ALL);
    prop_oneof![
        Just(Step::Running),
        cause().prop_map(Step::Ending),
        cause().prop_map(Step::Ended),
        (0..1_000_000_i64).prop_map(Step::Expiry),
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
        }
        Step::Expiry(time) if row.phase == Phase::Running && row.intent.is_none() => {
            row.expires = Some(Timestamp(*time));
        }
        Step::Running | Step::Ending(_) | Step::Ended(_) | Step::Expiry(_) => return None,
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
    let sequences = prop::collection::vec(any_step(), 1..8);
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
    };
    moved.expect("the store answers")
}
