//! Volumes, leases and checkpoints.

use domain::{
    ending::{Cause, Ending},
    id::{CheckpointId, VolumeId},
    image::digest::Digest,
    region::Region,
    volume::{AttachmentState, KeptState, MountPath, VolumeSize},
};
use store::{
    Store,
    checkpoints::{Checkpoint, Finished},
    sandboxes::{Moved, Sandbox},
    volumes::{Attached, Deleting, Volume, VolumeAdded},
};
use testkit::fixtures::distinct_bytes;
use tokio::task::JoinSet;

use crate::fixture::{NOW, Tenant, added, line, organization};

const MOST: u64 = 1000;

fn volume(tenant: &Tenant, name: &str) -> Volume {
    Volume {
        id: VolumeId::from_random(distinct_bytes()),
        organization: tenant.organization.clone(),
        owner: tenant.user.clone(),
        region: Region::local(),
        name: name.parse().expect("a name"),
        size: VolumeSize::mib(100).expect("a size"),
        state: KeptState::Making,
        detail: None,
        source: None,
        created: NOW,
    }
}

async fn add(store: &Store, volume: &Volume) -> VolumeAdded {
    let line = line(&volume.organization, "volume.create", Some(volume.id.as_str()));
    store.add_volume(volume, MOST, &line).await.expect("the store answers")
}

async fn ready(store: &Store, tenant: &Tenant, name: &str) -> Volume {
    let volume = volume(tenant, name);
    assert_eq!(add(store, &volume).await, VolumeAdded::New);
    assert_eq!(store.settle_volume(&volume.id, None).await.expect("settled"), Moved::Yes);
    Volume { state: KeptState::Ready, ..volume }
}

async fn running(store: &Store, tenant: &Tenant) -> Sandbox {
    let sandbox = added(store, tenant).await;
    let line = line(&tenant.organization, "sandbox.running", None);
    let moved = store.mark_running(&sandbox.id, NOW, &line).await.expect("the store answers");
    assert_eq!(moved, Moved::Yes);
    sandbox
}

async fn attach(store: &Store, volume: &Volume, sandbox: &Sandbox, path: &str) -> Attached {
    let line = line(&volume.organization, "volume.attach", Some(sandbox.id.as_str()));
    let path: MountPath = path.parse().expect("a path");
    let lease = (&volume.id, &sandbox.id);
    store.attach_volume(lease, &path, 2, NOW, &line).await.expect("the store answers")
}

async fn delete(store: &Store, volume: &Volume) -> Deleting {
    let line = line(&volume.organization, "volume.delete", Some(volume.id.as_str()));
    store.begin_delete_volume(&volume.id, &line).await.expect("the store answers")
}

fn checkpoint(of: &Volume) -> Checkpoint {
    Checkpoint {
        id: CheckpointId::from_random(distinct_bytes()),
        volume: of.id.clone(),
        organization: of.organization.clone(),
        region: of.region.clone(),
        size: of.size,
        state: KeptState::Making,
        detail: None,
        data_bytes: 0,
        stored_bytes: 0,
        manifest: None,
        created: NOW,
        finished: None,
    }
}

async fn begin(store: &Store, checkpoint: &Checkpoint) -> Moved {
    let line = line(&checkpoint.organization, "checkpoint.create", None);
    store.add_checkpoint(checkpoint, &line).await.expect("the store answers")
}

pub(crate) async fn a_volume_reads_back_as_it_was_added(store: Store) {
    let tenant = organization(&store).await;
    let made = volume(&tenant, "data");
    assert_eq!(add(&store, &made).await, VolumeAdded::New);
    assert_eq!(store.volume(&made.id).await.expect("read").as_ref(), Some(&made));
    let named = store.volume_named(&tenant.organization, &made.name).await.expect("read");
    assert_eq!(named.as_ref(), Some(&made));
    assert_eq!(add(&store, &volume(&tenant, "data")).await, VolumeAdded::NameTaken);
    let other = organization(&store).await;
    assert_eq!(add(&store, &volume(&other, "data")).await, VolumeAdded::New);
    assert_eq!(store.settle_volume(&made.id, Some("no room")).await.expect("settled"), Moved::Yes);
    assert_eq!(store.settle_volume(&made.id, None).await.expect("settled"), Moved::No);
    let failed = store.volume(&made.id).await.expect("read").expect("known");
    assert_eq!((failed.state, failed.detail.as_deref()), (KeptState::Failed, Some("no room")));
    store.drop_failed_volume(&made.id).await.expect("dropped");
    assert_eq!(store.volumes(&tenant.organization).await.expect("read"), []);
}

/// S61: simultaneous requests get what there is room for and no more.
pub(crate) async fn volumes_together_are_no_larger_than_they_may_be(store: Store) {
    let tenant = organization(&store).await;
    let mut creates = JoinSet::new();
    for index in 0..15 {
        let (store, volume) = (store.clone(), volume(&tenant, &format!("v{index}")));
        creates.spawn(async move { add(&store, &volume).await });
    }
    let outcomes = creates.join_all().await;
    let made = outcomes.iter().filter(|outcome| **outcome == VolumeAdded::New).count();
    assert_eq!(made, 10, "{outcomes:?}");
    let full = VolumeAdded::Full { in_use_mib: 1000 };
    assert!(outcomes.iter().all(|outcome| *outcome == VolumeAdded::New || *outcome == full));
}

/// U37: of many sandboxes that want a volume, one gets it.
pub(crate) async fn a_lease_has_one_holder(store: Store) {
    let tenant = organization(&store).await;
    let volume = ready(&store, &tenant, "data").await;
    let mut attaches = JoinSet::new();
    for _ in 0..8 {
        let sandbox = running(&store, &tenant).await;
        let (store, volume) = (store.clone(), volume.clone());
        attaches.spawn(async move { attach(&store, &volume, &sandbox, "/persist").await });
    }
    let outcomes = attaches.join_all().await;
    let got = outcomes.iter().filter(|outcome| matches!(outcome, Attached::New(_))).count();
    let taken = outcomes.iter().filter(|outcome| matches!(outcome, Attached::Taken(_))).count();
    assert_eq!((got, taken), (1, 7), "{outcomes:?}");
}

/// U37, S32: a lease ends with its sandbox, and not before.
pub(crate) async fn a_lease_ends_with_its_sandbox(store: Store) {
    let tenant = organization(&store).await;
    let volume = ready(&store, &tenant, "data").await;
    let (first, second) = (running(&store, &tenant).await, running(&store, &tenant).await);
    let Attached::New(lease) = attach(&store, &volume, &first, "/persist").await else {
        panic!("nobody had it")
    };
    assert_eq!(store.attachment(&volume.id).await.expect("read"), Some(lease.clone()));
    assert!(matches!(attach(&store, &volume, &first, "/persist").await, Attached::Taken(_)));
    let state = AttachmentState::Attached;
    let moved = store.move_attachment(&volume.id, &first.id, state, None).await.expect("moved");
    assert_eq!(moved, Moved::Yes);
    assert!(matches!(attach(&store, &volume, &first, "/persist").await, Attached::Before(_)));
    assert!(matches!(attach(&store, &volume, &first, "/mnt/x").await, Attached::Taken(_)));
    assert!(matches!(delete(&store, &volume).await, Deleting::Attached(_)));
    assert_eq!(store.volume(&volume.id).await.expect("read").as_ref(), Some(&volume));

    let ended = line(&tenant.organization, "sandbox.ended", None);
    let ending = Ending::new(Cause::Requested, "it ended");
    let moved = store.mark_ended(&first.id, &ending, NOW, &ended).await.expect("ended");
    assert_eq!(moved, Moved::Yes);
    assert_eq!(store.attachment(&volume.id).await.expect("read"), None);
    assert_eq!(store.attachments().await.expect("read"), []);
    assert!(matches!(attach(&store, &volume, &second, "/persist").await, Attached::New(_)));
    assert!(matches!(attach(&store, &volume, &first, "/persist").await, Attached::NotRunning));
    store.remove_attachment(&volume.id, &second.id).await.expect("removed");
    assert_eq!(delete(&store, &volume).await, Deleting::Begun);
    assert!(matches!(attach(&store, &volume, &second, "/persist").await, Attached::NotReady));
    store.remove_volume(&volume.id).await.expect("removed");
    assert_eq!(delete(&store, &volume).await, Deleting::Gone);
}

pub(crate) async fn a_sandbox_has_two_volumes_in_different_places(store: Store) {
    let tenant = organization(&store).await;
    let sandbox = running(&store, &tenant).await;
    let mut volumes = Vec::new();
    for name in ["a", "b", "c"] {
        volumes.push(ready(&store, &tenant, name).await);
    }
    assert!(matches!(attach(&store, &volumes[0], &sandbox, "/data").await, Attached::New(_)));
    let inside = attach(&store, &volumes[1], &sandbox, "/data/b").await;
    assert!(matches!(inside, Attached::PathTaken(_)), "{inside:?}");
    assert!(matches!(attach(&store, &volumes[1], &sandbox, "/b").await, Attached::New(_)));
    assert_eq!(attach(&store, &volumes[2], &sandbox, "/c").await, Attached::NoSlot);
    let slots: Vec<_> = store.attachments_of(&sandbox.id).await.expect("read");
    assert_eq!(slots.iter().map(|lease| lease.slot).collect::<Vec<_>>(), [0, 1]);
    store.remove_attachment(&volumes[0].id, &sandbox.id).await.expect("removed");
    let Attached::New(lease) = attach(&store, &volumes[2], &sandbox, "/c").await else {
        panic!("a slot is free")
    };
    assert_eq!(lease.slot, 0);
}

/// S39, S40: one checkpoint of a volume at a time; a volume does not go while
/// one is made of it, nor a checkpoint while a volume is made from it.
pub(crate) async fn checkpoints_hold_what_they_need(store: Store) {
    let tenant = organization(&store).await;
    let origin = ready(&store, &tenant, "origin").await;
    let first = checkpoint(&origin);
    assert_eq!(begin(&store, &first).await, Moved::Yes);
    assert_eq!(store.checkpoint(&first.id).await.expect("read").as_ref(), Some(&first));
    assert_eq!(begin(&store, &checkpoint(&origin)).await, Moved::No);
    assert_eq!(delete(&store, &origin).await, Deleting::Busy);
    let unfinished = Volume { source: Some(first.id.clone()), ..volume(&tenant, "copy") };
    assert_eq!(add(&store, &unfinished).await, VolumeAdded::SourceGone);
    let finished = Finished { data_bytes: 5, stored_bytes: 3, manifest: Digest::of(b"a manifest") };
    let moved = store.finish_checkpoint(&first.id, &finished, NOW).await.expect("finished");
    assert_eq!(moved, Moved::Yes);
    assert_eq!(store.unsettled_checkpoints().await.expect("read"), []);
    let whole = store.checkpoint(&first.id).await.expect("read").expect("known");
    assert_eq!((whole.data_bytes, whole.stored_bytes), (5, 3));
    assert_eq!((whole.state, whole.manifest), (KeptState::Ready, Some(finished.manifest)));

    assert_eq!(add(&store, &unfinished).await, VolumeAdded::New);
    assert_eq!(delete(&store, &origin).await, Deleting::Busy);
    let about = line(&tenant.organization, "checkpoint.delete", None);
    let going = store.begin_delete_checkpoint(&first.id, &about).await.expect("an answer");
    assert_eq!(going, Moved::No);
    assert_eq!(store.settle_volume(&unfinished.id, None).await.expect("settled"), Moved::Yes);
    let going = store.begin_delete_checkpoint(&first.id, &about).await.expect("an answer");
    assert_eq!(going, Moved::Yes);
    store.remove_checkpoint(&first.id).await.expect("removed");
    assert_eq!(store.checkpoints(&origin.id).await.expect("read"), []);

    let second = checkpoint(&origin);
    assert_eq!(begin(&store, &second).await, Moved::Yes);
    assert_eq!(store.fail_checkpoint(&second.id, "no").await.expect("failed"), Moved::Yes);
    assert_eq!(delete(&store, &origin).await, Deleting::Begun);
    store.remove_volume(&origin.id).await.expect("removed");
    assert_eq!(store.checkpoint(&second.id).await.expect("read"), None);
}
