//! Pausing, resuming and copying a sandbox.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use domain::{ending::Cause, environment::Environment, id::SandboxId, time::Timestamp};
use sandbox::{
    backend::{Backend, Sealed},
    host::{Host, HostError},
    spec::{Personality, SandboxSpec, Source},
};
use testkit::{
    fake_backend::{Call, FakeBackend, When},
    fixtures::{sandbox_id, sealed, spec},
};

use crate::ledger::{Book, host};

const SOON: Duration = Duration::from_secs(20);

fn of(snapshot: &Sealed) -> SandboxSpec {
    SandboxSpec { source: Source::Snapshot(snapshot.clone()), ..spec() }
}

async fn started() -> (Host, Arc<FakeBackend>, Arc<Book>, SandboxId) {
    let (host, backend, book) = host();
    let id = sandbox_id();
    host.start(id.clone(), spec(), Personality::default(), None).await.unwrap();
    (host, backend, book, id)
}

/// S33, S37, K11: a pause removes the machine, and the next call may resume it.
#[tokio::test]
async fn a_sandbox_is_paused_and_resumed() {
    let (host, backend, book, id) = started().await;
    for round in 1..=3 {
        let to = sealed();
        let captured = host.pause(&id, to.clone()).await.unwrap();
        assert!(captured.stored_bytes > 0);
        assert!(backend.list().await.unwrap().is_empty());
        assert!(matches!(host.open(&id).await, Err(HostError::NotFound | HostError::Paused)));
        host.resume(id.clone(), of(&to), None).await.unwrap();
        host.open(&id).await.unwrap();
        let guest = backend.guest(&id).unwrap();
        assert_eq!((guest.identified(), guest.woken()), (1, round));
        host.forget(&to.id).await.unwrap();
    }
    host.terminate(&id, Cause::Requested).await.unwrap();
    let lines = book.of(&id);
    assert_eq!(lines[..3], ["running", "paused", "resumed"]);
    assert_eq!(lines.len(), 8);
}

/// K3: a snapshot that fails leaves a running sandbox, and its cause is told.
#[tokio::test]
async fn a_capture_that_fails_leaves_it_running() {
    let (host, backend, book, id) = started().await;
    backend.fail(Call::Capture, Some("no space left on the disk"));
    let Err(HostError::Backend(error)) = host.pause(&id, sealed()).await else {
        panic!("it was paused")
    };
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("no space left"));
    host.open(&id).await.unwrap();
    assert_eq!(book.of(&id), ["running"]);
}

/// A pause that contradicts the record is undone: the machine goes on.
#[tokio::test]
async fn a_pause_that_is_refused_by_the_record_is_undone() {
    let (host, backend, book, id) = started().await;
    book.contrary.store(true, Ordering::Relaxed);
    let error = host.pause(&id, sealed()).await.unwrap_err();
    assert!(matches!(error, HostError::NotRecorded(_)), "{error:?}");
    assert!(!backend.stands_still(&id));
    host.open(&id).await.unwrap();
}

/// While the store is away nothing is decided: the machine stands still and the
/// pause goes on when the store is back.
#[tokio::test]
async fn a_pause_waits_for_the_store() {
    let (host, backend, book, id) = started().await;
    book.closed.store(true, Ordering::Relaxed);
    let pausing = tokio::spawn({
        let (host, id) = (host.clone(), id.clone());
        async move { host.pause(&id, sealed()).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(backend.stands_still(&id) && !pausing.is_finished());
    book.closed.store(false, Ordering::Relaxed);
    tokio::time::timeout(SOON, pausing).await.unwrap().unwrap().unwrap();
    assert_eq!(book.of(&id), ["running", "paused"]);
    assert!(backend.list().await.unwrap().is_empty());
}

/// K14: a resume that fails leaves it paused, with the reason; the next may
/// succeed.
#[tokio::test]
async fn a_resume_that_fails_leaves_it_paused() {
    let (host, backend, book, id) = started().await;
    let to = sealed();
    host.pause(&id, to.clone()).await.unwrap();
    backend.fail_create(Some("no memory left"));
    let Err(HostError::NotResumed(why)) = host.resume(id.clone(), of(&to), None).await else {
        panic!("it was resumed")
    };
    assert!(why.contains("no memory left"), "{why}");
    assert!(backend.list().await.unwrap().is_empty());
    backend.fail_create(None);
    host.resume(id.clone(), of(&to), None).await.unwrap();
    assert_eq!(book.of(&id), ["running", "paused", "resumed"]);
}

/// A sandbox can be ended in the middle of its pause.
#[tokio::test]
async fn a_pause_can_be_cut_short() {
    let (host, backend, book, id) = started().await;
    let mut stalled = backend.stall(Call::Capture, When::Before);
    let pausing = tokio::spawn({
        let (host, id) = (host.clone(), id.clone());
        async move { host.pause(&id, sealed()).await }
    });
    stalled.wait_for(|stalled| *stalled).await.unwrap();
    assert!(matches!(host.open(&id).await, Err(HostError::Paused)));
    assert!(matches!(host.capture(&id, sealed()).await, Err(HostError::Paused)));
    let ending = tokio::time::timeout(SOON, host.terminate(&id, Cause::Requested)).await;
    assert_eq!(ending.unwrap().unwrap().cause, Cause::Requested);
    assert!(matches!(pausing.await.unwrap(), Err(HostError::Ended(_) | HostError::NotFound)));
    assert_eq!(book.of(&id).len(), 2);
    assert!(backend.list().await.unwrap().is_empty());
}

/// K13: its time limit does not end a sandbox that is being paused.
#[tokio::test]
async fn time_stands_still_during_a_capture() {
    let (host, backend, book) = host();
    let id = sandbox_id();
    let soon = Timestamp::from(SystemTime::now()).plus(Duration::from_millis(400));
    host.start(id.clone(), spec(), Personality::default(), Some(soon)).await.unwrap();
    let mut stalled = backend.stall(Call::Capture, When::Before);
    let pausing = tokio::spawn({
        let (host, id) = (host.clone(), id.clone());
        async move { host.pause(&id, sealed()).await }
    });
    stalled.wait_for(|stalled| *stalled).await.unwrap();
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(book.of(&id), ["running"]);
    pausing.abort();
    host.terminate(&id, Cause::Requested).await.unwrap();
}

/// A copy becomes somebody else, with a name and randomness of its own, and the
/// one it was made of goes on.
#[tokio::test]
async fn a_copy_is_somebody_else() {
    let (host, backend, book, id) = started().await;
    let stream = host.open(&id).await.unwrap();
    let to = sealed();
    host.capture(&id, to.clone()).await.unwrap();
    let copies = [sandbox_id(), sandbox_id()];
    for copy in &copies {
        let environment = Environment::new([("NAME".to_owned(), copy.to_string())]).unwrap();
        let personality = Personality { environment, ..Personality::default() };
        host.start(copy.clone(), of(&to), personality, None).await.unwrap();
    }
    host.forget(&to.id).await.unwrap();
    let [one, two] = [0, 1].map(|n| backend.guest(&copies[n]).unwrap().newcomer().unwrap());
    assert_eq!(one.sandbox, copies[0].as_str());
    assert_eq!(one.environment, [("NAME".to_owned(), copies[0].to_string())]);
    assert_ne!(one.entropy, two.entropy);
    assert_ne!(one.machine_id, two.machine_id);
    assert_ne!(one.hostname, two.hostname);
    assert!(backend.guest(&id).unwrap().newcomer().is_none());
    assert_eq!(book.of(&id), ["running"]);
    // What was open before is open still.
    drop(stream);
    host.open(&id).await.unwrap();
}

/// One capture at a time.
#[tokio::test]
async fn a_second_capture_is_told_to_wait() {
    let (host, backend, _, id) = started().await;
    let mut stalled = backend.stall(Call::Capture, When::Before);
    let copying = tokio::spawn({
        let (host, id) = (host.clone(), id.clone());
        async move { host.capture(&id, sealed()).await }
    });
    stalled.wait_for(|stalled| *stalled).await.unwrap();
    assert!(matches!(host.capture(&id, sealed()).await, Err(HostError::Busy)));
    assert!(matches!(host.pause(&id, sealed()).await, Err(HostError::Busy)));
    copying.abort();
}

/// A server that goes away in the middle of a pause leaves a running sandbox,
/// and so does one that is killed there.
#[tokio::test]
async fn a_machine_that_was_left_standing_goes_on() {
    let (first, backend, book, id) = started().await;
    let mut stalled = backend.stall(Call::Capture, When::After);
    let pausing = tokio::spawn({
        let (host, id) = (first.clone(), id.clone());
        async move { host.pause(&id, sealed()).await }
    });
    stalled.wait_for(|stalled| *stalled).await.unwrap();
    first.release().await;
    assert!(pausing.await.unwrap().is_err());
    assert!(!backend.stands_still(&id));

    backend.capture(&id, &sealed(), sandbox::backend::Then::Hold).await.unwrap();
    let second = Host::new(backend.clone(), book.clone(), testkit::fixtures::sources());
    second.adopt(id.clone(), None);
    second.open(&id).await.unwrap();
    assert!(!backend.stands_still(&id));
    assert_eq!(book.of(&id), ["running"]);
}

/// Nobody is idle while a stream is open.
#[tokio::test]
async fn a_sandbox_in_use_is_not_idle() {
    let (host, _, _, id) = started().await;
    let stream = host.open(&id).await.unwrap();
    assert_eq!(host.idle(&id), None);
    drop(stream);
    assert!(host.idle(&id).unwrap() < SOON);
    assert_eq!(host.idle(&sandbox_id()), None);
}
