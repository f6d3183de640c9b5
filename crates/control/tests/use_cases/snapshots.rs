//! Snapshots by name.

use std::time::Duration;

use control::{
    sandboxes::NewSandbox,
    snapshots::{ListSnapshots, NewSnapshot, SnapshotRef},
};
use domain::phase::Phase;
use testkit::fake_backend::Call;

use crate::fixture::{Installation, request, scoped};

fn named(name: &str) -> NewSnapshot {
    NewSnapshot { name: name.parse().expect("a name"), keep: None }
}

fn by(name: &str) -> SnapshotRef {
    name.parse().expect("a name or an id")
}

/// A snapshot is made, listed, started from by name and by id, and removed; what
/// was started from it runs on.
#[tokio::test]
async fn a_sandbox_starts_from_a_snapshot() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let snapshot = it.control.create_snapshot(&it.caller, &made.id, named("warm")).await;
    let snapshot = snapshot.expect("a snapshot");
    assert!(snapshot.stored_bytes > 0 && snapshot.memory_bytes > 0);
    let listed = it.control.list_snapshots(&it.caller, ListSnapshots::default()).await;
    assert_eq!(listed.expect("a list").items, std::slice::from_ref(&snapshot));
    for which in ["warm", snapshot.id.as_str()] {
        let new = NewSandbox { snapshot: Some(by(which)), ..request() };
        let copy = it.control.create_sandbox(&it.caller, new).await.expect("it starts");
        assert_eq!((copy.phase, copy.parent.as_ref()), (Phase::Running, Some(&snapshot.id)));
        assert_eq!((copy.resources, copy.image), (made.resources, made.image));
        let guest = it.backend.fake.guest(&copy.id).expect("a guest");
        assert_eq!(guest.newcomer().expect("it became somebody").sandbox, copy.id.as_str());
    }
    it.control.delete_snapshot(&it.caller, &by("warm")).await.expect("removed");
    for which in ["warm", snapshot.id.as_str()] {
        let error = it.control.get_snapshot(&it.caller, &by(which)).await.expect_err("gone");
        assert_eq!(error.code(), "not_found");
    }
    assert_eq!(it.host.snapshots().await.expect("a list"), []);
    assert_eq!(it.machines().await.len(), 3);
    let again = it.control.create_snapshot(&it.caller, &made.id, named("warm")).await;
    again.expect("the name is free");
}

/// U40, S70: a snapshot is loaded only into its own organisation.
#[tokio::test]
async fn a_snapshot_of_another_organisation_is_unknown() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let snapshot = it.control.create_snapshot(&it.caller, &made.id, named("warm")).await;
    let snapshot = snapshot.expect("a snapshot");
    let stranger = it.stranger().await;
    for which in ["warm", snapshot.id.as_str()] {
        let new = NewSandbox { snapshot: Some(by(which)), ..request() };
        let error = it.control.create_sandbox(&stranger, new).await.expect_err("refused");
        assert_eq!(error.to_string(), "there is no such snapshot");
        let error = it.control.get_snapshot(&stranger, &by(which)).await.expect_err("refused");
        assert_eq!(error.code(), "not_found");
        let error = it.control.delete_snapshot(&stranger, &by(which)).await.expect_err("refused");
        assert_eq!(error.code(), "not_found");
    }
    let listed = it.control.list_snapshots(&stranger, ListSnapshots::default()).await;
    assert_eq!(listed.expect("a list").items, []);
    let error = it.control.create_snapshot(&stranger, &made.id, named("x")).await;
    assert_eq!(error.expect_err("refused").code(), "not_found");
    let reader = scoped(&it.caller, "sandboxes:read");
    let error = it.control.delete_snapshot(&reader, &by("warm")).await.expect_err("refused");
    assert_eq!(error.code(), "missing_scope");
    it.control.get_snapshot(&it.caller, &by("warm")).await.expect("it is there");
}

/// The snapshot of a pause is nobody's to see, to start from or to remove.
#[tokio::test]
async fn the_snapshot_of_a_pause_is_not_one_by_name() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
    let pause = it.store.pause_of(&made.id).await.expect("read").expect("a snapshot");
    let which = SnapshotRef::Id(pause.id);
    let error = it.control.delete_snapshot(&it.caller, &which).await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
    let new = NewSandbox { snapshot: Some(which), ..request() };
    let error = it.control.create_sandbox(&it.caller, new).await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
}

#[tokio::test]
async fn a_name_is_one_and_what_fails_frees_it() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    it.backend.fake.fail(Call::Capture, Some("no space"));
    let error = it.control.create_snapshot(&it.caller, &made.id, named("warm")).await;
    assert_eq!(error.expect_err("it fails").code(), "snapshot_failed");
    it.backend.fake.fail(Call::Capture, None);
    it.control.create_snapshot(&it.caller, &made.id, named("warm")).await.expect("a snapshot");
    let error = it.control.create_snapshot(&it.caller, &made.id, named("warm")).await;
    assert_eq!(error.expect_err("taken").code(), "snapshot_name_taken");
}

/// One that was to be kept for a while goes by itself.
#[tokio::test]
async fn a_snapshot_expires() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let new = NewSnapshot { keep: Some(Duration::ZERO), ..named("short") };
    it.control.create_snapshot(&it.caller, &made.id, new).await.expect("a snapshot");
    it.control.tend().await.expect("a round");
    assert_eq!(it.store.all_snapshots().await.expect("read"), []);
    let lines = it.lines(&it.caller).await;
    assert!(lines.iter().any(|line| line.action == "snapshot.expired"));
}
