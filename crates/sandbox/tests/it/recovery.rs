//! What another process left behind.

use std::time::Duration;

use domain::ending::Cause;
use sandbox::{backend::Backend, driver::Bounds, host::Host, spec::Personality};
use testkit::fixtures::{sandbox_id, sources, spec};

use crate::ledger::host;

/// A graceful end of the server leaves machines running; the next one adopts
/// them, and the guest keeps its identity.
#[tokio::test]
async fn a_released_sandbox_is_adopted() {
    let (first, backend, book) = host();
    let id = sandbox_id();
    first.start(id.clone(), spec(), Personality::default(), None).await.unwrap();
    first.release().await;
    assert_eq!(backend.list().await.unwrap(), std::slice::from_ref(&id));

    let second = Host::new(backend.clone(), book.clone(), sources());
    second.adopt(id.clone(), None);
    second.open(&id).await.unwrap();
    assert_eq!(backend.guest(&id).unwrap().identified(), 1, "it was made somebody else");
    assert_eq!(backend.guest(&id).unwrap().woken(), 1, "it was not told the time");
    second.terminate(&id, Cause::Requested).await.unwrap();
    assert!(backend.list().await.unwrap().is_empty());
}

/// A machine that died while nobody drove it is recorded as lost.
#[tokio::test]
async fn an_adopted_sandbox_without_a_machine_is_lost() {
    let (host, _, book) = host();
    let id = sandbox_id();
    host.adopt(id.clone(), None);
    let recorded = async {
        while book.of(&id).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), recorded).await.unwrap();
    assert!(book.of(&id)[0].starts_with("machine_exited"), "{:?}", book.of(&id));
}

/// A hello is no sign of life: a guest that answers those and nothing else is
/// lost, and does not stay as running for ever.
#[tokio::test]
async fn a_guest_that_answers_hellos_only_is_lost() {
    let (_, backend, book) = host();
    let bounds = Bounds {
        heartbeat: Duration::from_millis(50),
        reconnect: Duration::from_millis(500),
        ..Bounds::default()
    };
    let host = Host::with_bounds(backend.clone(), book.clone(), sources(), bounds);
    let id = sandbox_id();
    host.start(id.clone(), spec(), Personality::default(), None).await.unwrap();
    backend.guest(&id).unwrap().fall_silent();
    let ending = tokio::time::timeout(Duration::from_secs(20), host.ended(&id)).await;
    assert_eq!(ending.unwrap().unwrap().cause, Cause::GuestLost);
    assert!(backend.list().await.unwrap().is_empty());
}

/// Machines that nobody remembers are removed, and no others.
#[tokio::test]
async fn unknown_machines_are_removed() {
    let (host, backend, _) = host();
    let (known, unknown) = (sandbox_id(), sandbox_id());
    for id in [&known, &unknown] {
        backend.create(id, &spec()).await.unwrap();
    }
    assert_eq!(host.remove_unknown(std::slice::from_ref(&known)).await.unwrap(), 1);
    assert_eq!(backend.list().await.unwrap(), [known]);
}
