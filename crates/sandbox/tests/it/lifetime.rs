//! From start to end.

use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use domain::{ending::Cause, environment::Environment, time::Timestamp};
use guest_protocol::{client::GuestClient, process};
use sandbox::{backend::Backend, guest::HostedGuest, host::HostError, spec::Personality};
use testkit::fixtures::{sandbox_id, spec};

use crate::ledger::host;

fn personality() -> Personality {
    let environment = Environment::new([("NAME".to_owned(), "value".to_owned())]).unwrap();
    Personality { environment, ..Personality::default() }
}

/// U1, S30
#[tokio::test]
async fn a_sandbox_starts_answers_and_ends() {
    let (host, backend, book) = host();
    let id = sandbox_id();
    host.start(id.clone(), spec(), personality(), None).await.unwrap();
    let identity = backend.guest(&id).unwrap().identity().unwrap();
    assert_eq!(identity.sandbox, id.as_str());
    assert_eq!(identity.environment, [("NAME".to_owned(), "value".to_owned())]);

    let client = GuestClient::new(HostedGuest { host: host.clone(), id: id.clone() });
    let request = process::StartRequest {
        process: process::ProcessConfig {
            cmd: "echo".into(),
            args: vec!["hello".into()],
            ..Default::default()
        },
        ..Default::default()
    };
    let mut stream = client.start(&request, "user", None).await.unwrap();
    let mut output = Vec::new();
    let end = loop {
        match stream.next().await.unwrap() {
            process::Event::Data(process::Output::Stdout(bytes)) => output.extend(bytes.0),
            process::Event::End(end) => break end,
            _ => {}
        }
    };
    assert_eq!((output.as_slice(), end.exit_code), (b"hello\n".as_slice(), 0));

    let ending = host.terminate(&id, Cause::Requested).await.unwrap();
    assert_eq!(ending.cause, Cause::Requested);
    assert!(backend.list().await.unwrap().is_empty());
    assert_eq!(book.of(&id), ["running", "requested: it was terminated on request"]);
    assert!(matches!(host.open(&id).await, Err(HostError::NotFound)));
}

/// Two machines of one template differ: identity and entropy are their own.
#[tokio::test]
async fn no_two_sandboxes_share_an_identity() {
    let (host, backend, _) = host();
    let (one, two) = (sandbox_id(), sandbox_id());
    for id in [&one, &two] {
        host.start(id.clone(), spec(), personality(), None).await.unwrap();
    }
    let [one, two] = [one, two].map(|id| backend.guest(&id).unwrap().identity().unwrap());
    assert_ne!(one.machine_id, two.machine_id);
    assert_ne!(one.entropy, two.entropy);
    assert_ne!(one.hostname, two.hostname);
}

/// K16: what cannot start says why, and leaves nothing.
#[tokio::test]
async fn a_failed_start_names_its_cause() {
    let (host, backend, book) = host();
    backend.fail_create(Some("no memory left"));
    let id = sandbox_id();
    let ending = host.start(id.clone(), spec(), personality(), None).await.unwrap_err();
    assert_eq!(ending.cause, Cause::StartFailed);
    assert!(ending.detail.contains("no memory left"), "{ending}");
    drop(host.ended(&id).await);
    assert_eq!(book.of(&id).len(), 1);
    assert!(backend.list().await.unwrap().is_empty());
}

/// A dead machine is noticed at once, with the reason.
#[tokio::test]
async fn a_crash_becomes_a_failure_with_its_reason() {
    let (host, backend, book) = host();
    let id = sandbox_id();
    host.start(id.clone(), spec(), personality(), None).await.unwrap();
    backend.crash(&id, "the kernel panicked");
    let ending = host.ended(&id).await.unwrap();
    assert_eq!(
        (ending.cause, ending.detail.as_str()),
        (Cause::MachineExited, "the kernel panicked")
    );
    assert_eq!(book.of(&id).last().unwrap(), "machine_exited: the kernel panicked");
}

/// S66: at its time limit a sandbox is terminated; the limit can move.
#[tokio::test]
async fn the_time_limit_ends_a_sandbox() {
    let (host, _, book) = host();
    let (short, moved) = (sandbox_id(), sandbox_id());
    let soon = Timestamp::from(SystemTime::now()).plus(Duration::from_millis(300));
    for id in [&short, &moved] {
        host.start(id.clone(), spec(), personality(), Some(soon)).await.unwrap();
    }
    host.set_deadline(&moved, soon.plus(Duration::from_secs(600))).await.unwrap();
    assert_eq!(host.ended(&short).await.unwrap().cause, Cause::TimeLimit);
    assert_eq!(book.of(&short).last().unwrap(), "time_limit: its time limit passed");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(book.of(&moved), ["running"]);
}

/// A client that hangs up during a start leaves nothing unowned.
#[tokio::test]
async fn a_start_nobody_waits_for_is_still_driven() {
    let (host, backend, book) = host();
    let id = sandbox_id();
    let start = host.start(id.clone(), spec(), personality(), None);
    drop(tokio::time::timeout(Duration::ZERO, start).await);
    let soon = tokio::time::timeout(Duration::from_secs(20), async {
        while book.of(&id).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    soon.await.expect("the driver went on");
    host.terminate(&id, Cause::Requested).await.unwrap();
    assert!(backend.list().await.unwrap().is_empty());
}

/// Nobody is told of a sandbox that is not on record.
#[tokio::test]
async fn a_start_that_cannot_be_recorded_is_undone() {
    let (host, backend, book) = host();
    book.closed.store(true, Ordering::Relaxed);
    let id = sandbox_id();
    let ending = host.start(id.clone(), spec(), personality(), None).await.unwrap_err();
    assert_eq!(ending.cause, Cause::StartFailed);
    book.closed.store(false, Ordering::Relaxed);
    drop(host.ended(&id).await);
    assert_eq!(book.of(&id).len(), 1, "the end is recorded once the store is back");
    assert!(backend.list().await.unwrap().is_empty());
}

/// Asking twice, and from two sides, returns the first ending.
#[tokio::test]
async fn terminating_twice_is_not_an_error() {
    let (host, _, book) = host();
    let id = sandbox_id();
    host.start(id.clone(), spec(), personality(), None).await.unwrap();
    let (one, two) =
        tokio::join!(host.terminate(&id, Cause::Requested), host.terminate(&id, Cause::Requested));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(book.of(&id).len(), 2);
}
