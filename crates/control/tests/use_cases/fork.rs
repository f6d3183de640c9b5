//! Copies of a running sandbox.

use std::collections::BTreeSet;

use control::{
    guest::GuestCall,
    sandboxes::{
        fork::NewFork,
        request::{Copies, Metadata, Timeout},
    },
    settings::TierLimits,
};
use domain::phase::Phase;
use testkit::fake_backend::Call;
use tokio::task::JoinSet;

use crate::fixture::{Installation, request};

fn of(count: u32) -> NewFork {
    NewFork { count: Copies::new(count).expect("a count"), ..NewFork::default() }
}

/// Each copy is somebody else, starts from what the sandbox was, and answers;
/// nothing of the snapshot is left.
#[tokio::test]
async fn copies_are_each_somebody_else() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let label = [("role".to_owned(), "copy".to_owned())];
    let fork = NewFork {
        metadata: Some(Metadata::new(label.clone().into()).expect("labels")),
        timeout: Some(Timeout::seconds(60).expect("a limit")),
        ..of(3)
    };
    let copies = it.control.fork_sandbox(&it.caller, &made.id, fork).await.expect("copies");
    assert_eq!(copies.len(), 3);
    let mut machines = BTreeSet::new();
    let mut entropy = BTreeSet::new();
    for copy in &copies {
        assert_eq!((copy.phase, copy.timeout.as_secs()), (Phase::Running, 60));
        assert_eq!(copy.metadata, label.clone().into());
        assert!(copy.parent.is_some() && copy.image == made.image);
        let guest = it.backend.fake.guest(&copy.id).expect("a guest");
        // It was the sandbox, and is not any more.
        assert_eq!(guest.identity().expect("an identity").sandbox, made.id.as_str());
        let newcomer = guest.newcomer().expect("it became somebody");
        assert_eq!(newcomer.sandbox, copy.id.as_str());
        machines.insert(newcomer.machine_id);
        entropy.insert(newcomer.entropy);
        let call = GuestCall::Health;
        it.control.open_guest(&it.caller, &copy.id, &call).await.expect("it answers");
    }
    assert_eq!((machines.len(), entropy.len()), (3, 3));
    assert_eq!(it.store.all_snapshots().await.expect("read"), []);
    assert_eq!(it.host.snapshots().await.expect("a list"), []);
    let lines = it.lines(&it.caller).await;
    let copied = lines.iter().find(|line| line.action == "sandbox.copied").expect("a line");
    assert_eq!(copied.detail["copies"].as_array().map(Vec::len), Some(3));
}

/// B15, U19: any number of simultaneous requests get the cap and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_count_against_the_cap() {
    let tier = TierLimits { max_concurrent: 6, ..TierLimits::default() };
    let it = Installation::with(tier, "sqlite::memory:").await;
    let mut sources = Vec::new();
    for _ in 0..3 {
        sources.push(it.control.create_sandbox(&it.caller, request()).await.expect("it starts"));
    }
    let error = it.control.fork_sandbox(&it.caller, &sources[0].id, of(4)).await.expect_err("full");
    assert_eq!(error.code(), "quota_exceeded");
    let mut forks = JoinSet::new();
    for source in sources {
        let (control, caller) = (it.control.clone(), it.caller.clone());
        forks.spawn(async move { control.fork_sandbox(&caller, &source.id, of(2)).await });
    }
    let outcomes = forks.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    assert_eq!(it.machines().await.len(), 5);
    assert_eq!(it.store.all_snapshots().await.expect("read"), []);
}

/// K3: what cannot be copied runs on, and nothing is left of the attempt.
#[tokio::test]
async fn a_copy_that_fails_leaves_the_sandbox() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    it.backend.fake.fail(Call::Capture, Some("no space"));
    let error = it.control.fork_sandbox(&it.caller, &made.id, of(2)).await.expect_err("it fails");
    assert_eq!(error.code(), "snapshot_failed");
    it.backend.fake.fail(Call::Capture, None);
    it.backend.fake.fail(Call::Create, Some("no memory"));
    let error = it.control.fork_sandbox(&it.caller, &made.id, of(2)).await.expect_err("it fails");
    assert_eq!(error.code(), "start_failed");
    assert_eq!(it.machines().await, std::slice::from_ref(&made.id));
    assert_eq!(it.store.all_snapshots().await.expect("read"), []);
    it.control.open_guest(&it.caller, &made.id, &GuestCall::Health).await.expect("it answers");
}

/// S70
#[tokio::test]
async fn a_stranger_finds_nothing_to_copy() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let stranger = it.stranger().await;
    let error = it.control.fork_sandbox(&stranger, &made.id, of(1)).await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
}
