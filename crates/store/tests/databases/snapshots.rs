//! Snapshots, and sandboxes that rest on them.

use std::time::Duration;

use domain::{
    ending::{Cause, Ending},
    id::SnapshotId,
    phase::Phase,
    snapshot::{SnapshotKey, SnapshotKind},
    time::Timestamp,
};
use store::{
    Store,
    sandboxes::{Added, Moved, Sandbox, rest::Woken},
    snapshots::{AddedSnapshot, Purpose, Snapshot, SnapshotBytes, SnapshotFilter, SnapshotState},
};
use testkit::fixtures::distinct_bytes;
use tokio::task::JoinSet;

use crate::fixture::{NOW, Tenant, add, added, line, organization, sandbox, unkeyed};

pub(crate) const BYTES: SnapshotBytes = SnapshotBytes { stored: 4096, memory: 1 << 33 };
pub(crate) const KEPT: Timestamp = Timestamp(NOW.0 + 1_000_000_000);

fn key(byte: u8) -> SnapshotKey {
    SnapshotKey::from_random([byte; 32])
}

pub(crate) fn snapshot(of: &Sandbox, purpose: Purpose, name: Option<&str>) -> Snapshot {
    Snapshot {
        id: SnapshotId::from_random(distinct_bytes()),
        organization: of.organization.clone(),
        owner: of.owner.clone(),
        region: of.region.clone(),
        kind: SnapshotKind::Full,
        purpose,
        name: name.map(|name| name.parse().expect("a name")),
        sandbox: of.id.clone(),
        template: of.template.clone(),
        image: of.image,
        size: of.size,
        resources: of.resources,
        state: SnapshotState::Making,
        stored_bytes: 0,
        memory_bytes: 0,
        parent: of.parent.clone(),
        created: NOW,
        expires: None,
    }
}

fn about(of: &Sandbox) -> store::audit::AuditLine {
    line(&of.organization, "test", Some(of.id.as_str()))
}

async fn running(store: &Store, tenant: &Tenant) -> Sandbox {
    let sandbox = added(store, tenant).await;
    let moved = store.mark_running(&sandbox.id, NOW, &about(&sandbox)).await;
    assert_eq!(moved.expect("the store answers"), Moved::Yes);
    store.sandbox(&sandbox.id).await.expect("read").expect("it is there")
}

pub(crate) async fn add_one(
    store: &Store,
    of: &Sandbox,
    snapshot: &Snapshot,
    most: u32,
) -> AddedSnapshot {
    let added = store.add_snapshot(snapshot, &key(7), most, &about(of)).await;
    added.expect("the store answers")
}

async fn pause(store: &Store, of: &Sandbox, now: Timestamp) -> Snapshot {
    let making = snapshot(of, Purpose::Pause, None);
    assert_eq!(add_one(store, of, &making, 9).await, AddedSnapshot::New);
    let paused = store.mark_paused(&of.id, &making.id, BYTES, (now, KEPT), &about(of)).await;
    assert_eq!(paused.expect("the store answers"), Moved::Yes);
    making
}

/// Leaves one named snapshot, whose key is kept.
pub(crate) async fn kept(store: &Store) {
    let tenant = organization(store).await;
    let of = running(store, &tenant).await;
    let making = snapshot(&of, Purpose::Named, Some("kept"));
    assert_eq!(add_one(store, &of, &making, 9).await, AddedSnapshot::New);
}

/// A snapshot reads back, its key too, and neither is there once it goes (S49).
pub(crate) async fn a_snapshot_is_made_and_goes(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    let making = snapshot(&of, Purpose::Named, Some("warm"));
    assert_eq!(add_one(&store, &of, &making, 9).await, AddedSnapshot::New);
    assert_eq!(store.snapshot(&making.id).await.expect("read"), Some(making.clone()));
    let ready = store.mark_snapshot_ready(&making.id, BYTES, &about(&of)).await;
    assert_eq!(ready.expect("the store answers"), Moved::Yes);
    let name = "warm".parse().expect("a name");
    let found = store.snapshot_by_name(&of.organization, &name).await.expect("read");
    let whole = Snapshot {
        state: SnapshotState::Ready,
        stored_bytes: BYTES.stored,
        memory_bytes: BYTES.memory,
        ..making.clone()
    };
    assert_eq!(found, Some(whole));
    let kept = store.snapshot_key(&making.id).await.expect("read").expect("a key");
    assert_eq!(kept.expose(), key(7).expose());

    let going = store.mark_snapshot_going(&making.id, &about(&of)).await;
    assert_eq!(going.expect("the store answers"), Moved::Yes);
    assert!(store.snapshot_key(&making.id).await.expect("read").is_none());
    assert_eq!(store.snapshot_by_name(&of.organization, &name).await.expect("read"), None);
    let again = store.mark_snapshot_ready(&making.id, BYTES, &about(&of)).await;
    assert_eq!(again.expect("the store answers"), Moved::No, "it came back");
    assert_eq!(store.going_snapshots().await.expect("read").len(), 1);
    store.remove_snapshot(&making.id).await.expect("removed");
    assert_eq!(store.snapshot(&making.id).await.expect("read"), None);
}

pub(crate) async fn a_snapshots_name_is_one_in_an_organisation(store: Store) {
    let (tenant, other) = (organization(&store).await, organization(&store).await);
    let (of, foreign) = (running(&store, &tenant).await, running(&store, &other).await);
    let mut adds = JoinSet::new();
    for _ in 0..6 {
        let (store, of) = (store.clone(), of.clone());
        let making = snapshot(&of, Purpose::Named, Some("one"));
        adds.spawn(async move { add_one(&store, &of, &making, 9).await });
    }
    let outcomes = adds.join_all().await;
    let made = outcomes.iter().filter(|outcome| **outcome == AddedSnapshot::New).count();
    assert_eq!(made, 1, "{outcomes:?}");
    let theirs = snapshot(&foreign, Purpose::Named, Some("one"));
    assert_eq!(add_one(&store, &foreign, &theirs, 9).await, AddedSnapshot::New);
    let second = snapshot(&of, Purpose::Named, Some("two"));
    assert_eq!(add_one(&store, &of, &second, 1).await, AddedSnapshot::Full { in_use: 1 });
    let filter = SnapshotFilter {
        organization: of.organization.clone(),
        sandbox: None,
        limit: 10,
        after: None,
    };
    assert_eq!(store.snapshots(&filter).await.expect("read").len(), 1);
}

/// S33, K13: what is left of the time stays, and counts from the resume on.
pub(crate) async fn a_pause_keeps_what_is_left_of_the_time(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    let later = NOW.plus(Duration::from_secs(100));
    let snapshot = pause(&store, &of, later).await;
    let paused = store.sandbox(&of.id).await.expect("read").expect("it is there");
    assert_eq!((paused.phase, paused.expires), (Phase::Paused, Some(KEPT)));
    assert_eq!(paused.rest.paused, Some(later));
    assert_eq!(paused.rest.remaining, Some(Duration::from_secs(200)));
    assert_eq!(
        store.pause_of(&of.id).await.expect("read").map(|row| row.id),
        Some(snapshot.id.clone())
    );
    assert_eq!(store.count_live_sandboxes(&of.organization).await.expect("read"), 0);
    assert_eq!(store.count_paused_sandboxes(&of.organization).await.expect("read"), 1);

    let much_later = NOW.plus(Duration::from_secs(100_000));
    let woken = store.begin_waking(&paused, None, 9, &about(&of)).await;
    assert_eq!(woken.expect("the store answers"), Woken::Begun);
    let resumed = store.mark_resumed(&of.id, much_later, &about(&of)).await;
    assert_eq!(resumed.expect("the store answers"), Moved::Yes);
    let row = store.sandbox(&of.id).await.expect("read").expect("it is there");
    assert_eq!(row.phase, Phase::Running);
    assert_eq!(row.expires, Some(much_later.plus(Duration::from_secs(200))));
    assert_eq!(row.rest, of.rest);
    assert!(store.snapshot_key(&snapshot.id).await.expect("read").is_none());
    assert_eq!(store.pause_of(&of.id).await.expect("read"), None);
}

pub(crate) async fn a_pause_at_the_time_limit_gives_all_of_it_again(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    pause(&store, &of, NOW.plus(Duration::from_secs(300))).await;
    let paused = store.sandbox(&of.id).await.expect("read").expect("it is there");
    assert_eq!(paused.rest.remaining, Some(of.timeout));
}

/// Of simultaneous resumes one begins, and it takes a place (B15).
pub(crate) async fn of_many_resumes_one_begins(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    pause(&store, &of, NOW).await;
    let mut resumes = JoinSet::new();
    for _ in 0..10 {
        let (store, of) = (store.clone(), of.clone());
        resumes.spawn(async move {
            store.begin_waking(&of, None, 9, &about(&of)).await.expect("the store answers")
        });
    }
    let outcomes = resumes.join_all().await;
    let begun = outcomes.iter().filter(|outcome| **outcome == Woken::Begun).count();
    assert_eq!(begun, 1, "{outcomes:?}");
    assert_eq!(store.count_live_sandboxes(&of.organization).await.expect("read"), 1);
    let full = add(&store, &sandbox(&tenant), &unkeyed(), 1).await;
    assert_eq!(full, Added::Full { in_use: 1 });
    let ended = store.end_waking(&of.id, &about(&of)).await;
    assert_eq!(ended.expect("the store answers"), Moved::Yes);
    assert_eq!(store.count_live_sandboxes(&of.organization).await.expect("read"), 0);
}

/// A resume needs a place among those that run.
pub(crate) async fn a_resume_beyond_the_cap_is_refused(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    pause(&store, &of, NOW).await;
    running(&store, &tenant).await;
    let woken = store.begin_waking(&of, None, 1, &about(&of)).await;
    assert_eq!(woken.expect("the store answers"), Woken::Full { in_use: 1 });
}

/// S49: with the end of a paused sandbox the key of its snapshot is gone.
pub(crate) async fn an_ended_sandbox_leaves_no_key(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    let snapshot = pause(&store, &of, NOW).await;
    let wish = store.mark_ending(&of.id, Cause::Requested, &about(&of)).await;
    assert_eq!(wish.expect("the store answers"), Moved::Yes);
    // What is to end is not woken.
    let woken = store.begin_waking(&of, None, 9, &about(&of)).await;
    assert_eq!(woken.expect("the store answers"), Woken::No);
    let ending = Ending::new(Cause::Requested, "asked");
    let ended = store.mark_ended(&of.id, &ending, NOW, &about(&of)).await;
    assert_eq!(ended.expect("the store answers"), Moved::Yes);
    assert!(store.snapshot_key(&snapshot.id).await.expect("read").is_none());
    let going = store.going_snapshots().await.expect("read");
    assert_eq!(going.iter().map(|row| &row.id).collect::<Vec<_>>(), [&snapshot.id]);
}

/// A pause that comes too late changes nothing: the snapshot is not whole either.
pub(crate) async fn what_is_to_end_is_not_paused(store: Store) {
    let tenant = organization(&store).await;
    let of = running(&store, &tenant).await;
    let making = snapshot(&of, Purpose::Pause, None);
    assert_eq!(add_one(&store, &of, &making, 9).await, AddedSnapshot::New);
    let wish = store.mark_ending(&of.id, Cause::Requested, &about(&of)).await;
    assert_eq!(wish.expect("the store answers"), Moved::Yes);
    let paused = store.mark_paused(&of.id, &making.id, BYTES, (NOW, KEPT), &about(&of)).await;
    assert_eq!(paused.expect("the store answers"), Moved::No);
    let row = store.snapshot(&making.id).await.expect("read").expect("it is there");
    assert_eq!(row.state, SnapshotState::Making);
    let late = snapshot(&of, Purpose::Named, Some("late"));
    assert_eq!(add_one(&store, &of, &late, 9).await, AddedSnapshot::NotRunning);
}

/// The copies of one request are all there or none is (B15).
pub(crate) async fn copies_come_together_or_not_at_all(store: Store) {
    let tenant = organization(&store).await;
    added(&store, &tenant).await;
    let copies = |n: usize| -> Vec<_> { (0..n).map(|_| (sandbox(&tenant), unkeyed())).collect() };
    let line = line(&tenant.organization, "sandbox.fork", None);
    let full = store.add_copies(&copies(3), 3, &line).await.expect("the store answers");
    assert_eq!(full, Added::Full { in_use: 1 });
    assert_eq!(store.live_sandboxes().await.expect("read").len(), 1);
    let fit = store.add_copies(&copies(2), 3, &line).await.expect("the store answers");
    assert_eq!(fit, Added::New);
    assert_eq!(store.live_sandboxes().await.expect("read").len(), 3);
}
