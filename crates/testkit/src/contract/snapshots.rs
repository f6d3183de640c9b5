//! The sentences about snapshots, for backends that capture machines.

use std::{sync::Arc, time::Duration};

use guest_protocol::control::{Newcomer, Request, Response};
use sandbox::{
    backend::{Backend, BackendError, Sealed, Then},
    link,
    spec::{SandboxSpec, Source},
};
use tokio::time::timeout;

use super::BOUND;
use crate::fixtures::{distinct_bytes, sandbox_id, sealed};

/// Every sentence, one after another.
pub async fn all(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    a_captured_machine_goes_on(backend.clone(), spec).await;
    a_held_machine_goes_on_when_told(backend.clone(), spec).await;
    any_number_starts_from_one_snapshot(backend.clone(), spec).await;
    a_whole_snapshot_is_not_written_again(backend.clone(), spec).await;
    a_snapshot_opens_with_its_own_key_only(backend.clone(), spec).await;
    what_is_forgotten_is_gone(backend.clone(), spec).await;
    an_interrupted_capture_leaves_nothing_unlisted(backend, spec).await;
}

/// A capture that lets the machine go on leaves it answering, and the snapshot
/// is whole, listed and loadable.
pub async fn a_captured_machine_goes_on(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let (id, to) = (sandbox_id(), sealed());
    backend.create(&id, spec).await.expect("create");
    greet(&backend, &id, &newcomer(&id)).await;
    let captured = backend.capture(&id, &to, Then::Continue).await.expect("a snapshot");
    assert!(captured.stored_bytes > 0 && captured.memory_bytes > 0);
    backend.loadable(&to.id).await.expect("it can be loaded");
    assert!(backend.snapshots().await.expect("a list").contains(&to.id));
    greet(&backend, &id, &Request::Ping { nonce: 1 }).await;
    backend.destroy(&id).await.expect("destroy");
    backend.loadable(&to.id).await.expect("it outlives its machine");
    backend.forget(&to.id).await.expect("forgotten");
}

/// A held machine answers again after `proceed`, which may be repeated and does
/// nothing to one that runs.
pub async fn a_held_machine_goes_on_when_told(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let (id, to) = (sandbox_id(), sealed());
    backend.create(&id, spec).await.expect("create");
    greet(&backend, &id, &newcomer(&id)).await;
    backend.capture(&id, &to, Then::Hold).await.expect("a snapshot");
    for _ in 0..2 {
        backend.proceed(&id).await.expect("it goes on");
        greet(&backend, &id, &Request::Ping { nonce: 1 }).await;
    }
    backend.destroy(&id).await.expect("destroy");
    backend.forget(&to.id).await.expect("forgotten");
}

/// Two machines of one snapshot run beside the one it was taken of, each with
/// its own end.
pub async fn any_number_starts_from_one_snapshot(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let (first, to) = (sandbox_id(), sealed());
    backend.create(&first, spec).await.expect("create");
    greet(&backend, &first, &newcomer(&first)).await;
    backend.capture(&first, &to, Then::Continue).await.expect("a snapshot");
    let copies = [sandbox_id(), sandbox_id()];
    for copy in &copies {
        backend.create(copy, &from(spec, &to)).await.expect("a start from the snapshot");
        greet(&backend, copy, &newcomer(copy)).await;
    }
    backend.destroy(&copies[0]).await.expect("destroy");
    backend.forget(&to.id).await.expect("forgotten");
    for id in [&first, &copies[1]] {
        greet(&backend, id, &Request::Ping { nonce: 2 }).await;
        backend.destroy(id).await.expect("destroy");
    }
}

/// A snapshot that exists whole is not written again.
pub async fn a_whole_snapshot_is_not_written_again(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let (id, to) = (sandbox_id(), sealed());
    backend.create(&id, spec).await.expect("create");
    greet(&backend, &id, &newcomer(&id)).await;
    let first = backend.capture(&id, &to, Then::Continue).await.expect("a snapshot");
    let again = backend.capture(&id, &to, Then::Continue).await.expect("the same snapshot");
    assert_eq!(first, again);
    backend.destroy(&id).await.expect("destroy");
    backend.forget(&to.id).await.expect("forgotten");
}

/// S49, U40: with another key nothing starts, and nothing is left.
pub async fn a_snapshot_opens_with_its_own_key_only(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let (id, to) = (sandbox_id(), sealed());
    backend.create(&id, spec).await.expect("create");
    greet(&backend, &id, &newcomer(&id)).await;
    backend.capture(&id, &to, Then::Continue).await.expect("a snapshot");
    let before = backend.list().await.expect("a list").len();
    let wrong = Sealed { key: sealed().key, ..to.clone() };
    let copy = sandbox_id();
    backend.create(&copy, &from(spec, &wrong)).await.expect_err("the key does not fit");
    assert_eq!(backend.list().await.expect("a list").len(), before);
    backend.destroy(&id).await.expect("destroy");
    backend.forget(&to.id).await.expect("forgotten");
}

/// What was forgotten, and what never was, is no snapshot; forgetting it again
/// succeeds.
pub async fn what_is_forgotten_is_gone(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let (id, to) = (sandbox_id(), sealed());
    backend.create(&id, spec).await.expect("create");
    greet(&backend, &id, &newcomer(&id)).await;
    backend.capture(&id, &to, Then::Continue).await.expect("a snapshot");
    for _ in 0..2 {
        backend.forget(&to.id).await.expect("forgotten");
    }
    for gone in [&to, &sealed()] {
        assert!(matches!(backend.loadable(&gone.id).await, Err(BackendError::NoSnapshot)));
        let start = backend.create(&sandbox_id(), &from(spec, gone)).await;
        assert!(matches!(start, Err(BackendError::NoSnapshot)), "{start:?}");
    }
    assert!(!backend.snapshots().await.expect("a list").contains(&to.id));
    backend.destroy(&id).await.expect("destroy");
}

/// A capture that was dropped leaves a snapshot that is listed or absent, and a
/// machine that goes on when told.
pub async fn an_interrupted_capture_leaves_nothing_unlisted(
    backend: Arc<dyn Backend>,
    spec: &SandboxSpec,
) {
    let id = sandbox_id();
    backend.create(&id, spec).await.expect("create");
    greet(&backend, &id, &newcomer(&id)).await;
    let before = backend.snapshots().await.expect("a list").len();
    for delay in [0, 1, 5, 20, 50, 200] {
        let to = sealed();
        let capture = backend.capture(&id, &to, Then::Hold);
        drop(timeout(Duration::from_millis(delay), capture).await);
        backend.proceed(&id).await.expect("it goes on");
        greet(&backend, &id, &Request::Ping { nonce: 3 }).await;
        backend.forget(&to.id).await.expect("forgotten");
        assert_eq!(backend.snapshots().await.expect("a list").len(), before);
    }
    backend.destroy(&id).await.expect("destroy");
}

fn from(spec: &SandboxSpec, snapshot: &Sealed) -> SandboxSpec {
    SandboxSpec { source: Source::Snapshot(snapshot.clone()), ..spec.clone() }
}

fn newcomer(id: &domain::id::SandboxId) -> Request {
    let mut entropy = [0; 32];
    entropy[..16].copy_from_slice(&distinct_bytes());
    Request::Become(Box::new(Newcomer {
        sandbox: id.to_string(),
        hostname: id.as_str().replace('_', "-"),
        machine_id: distinct_bytes(),
        unix_nanos: 1_700_000_000_000_000_000,
        entropy,
        environment: Vec::new(),
    }))
}

/// Sends one request over a new pipe, whatever an earlier one left.
async fn greet(backend: &Arc<dyn Backend>, id: &domain::id::SandboxId, request: &Request) {
    let pipe = backend.connect(id).await.expect("connect");
    let epoch = u32::from_le_bytes(distinct_bytes()[12..].try_into().expect("four bytes"));
    let (link, living) = timeout(BOUND, link::establish(pipe, link::Pipe::Used, epoch))
        .await
        .expect("the guest answers in time")
        .expect("the guest answers");
    let asking = async {
        let mut control = link.control().await.expect("a control stream");
        let answer = control.call(request, BOUND).await.expect("an answer");
        let expected = match request {
            Request::Ping { nonce } => Response::Pong { nonce: *nonce },
            _ => Response::Done,
        };
        assert_eq!(answer, expected);
    };
    tokio::select! {
        () = asking => {}
        ended = living => panic!("the session ended: {ended:?}"),
    }
}
