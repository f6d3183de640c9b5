//! The sentences of `sandbox::backend::Backend` as tests.
//!
//! Each function is one sentence. The fake and every real backend run them all;
//! a fake that passes the same list is one you may believe.

use std::{sync::Arc, time::Duration};

use guest_protocol::control::{Request, Response};
use sandbox::{backend::Backend, link, spec::SandboxSpec};
use tokio::time::timeout;

use crate::fixtures::sandbox_id;

pub mod snapshots;

/// No backend may take longer than this for anything here, even emulated.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// `create` twice with one id makes one sandbox.
pub async fn creating_twice_makes_one_sandbox(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let id = sandbox_id();
    let before = backend.list().await.expect("list").len();
    backend.create(&id, spec).await.expect("first create");
    backend.create(&id, spec).await.expect("a repeated create is accepted");
    assert_eq!(backend.list().await.expect("list").len(), before + 1);
    backend.destroy(&id).await.expect("destroy");
    assert_eq!(backend.list().await.expect("list").len(), before, "something was left behind");
}

/// `destroy` of an absent sandbox succeeds, and so does a second one.
pub async fn destroying_what_is_absent_succeeds(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let id = sandbox_id();
    backend.destroy(&id).await.expect("destroy of what never was");
    backend.create(&id, spec).await.expect("create");
    backend.destroy(&id).await.expect("destroy");
    backend.destroy(&id).await.expect("a repeated destroy is accepted");
}

/// The guest answers over the pipe, and again over a second one.
pub async fn a_guest_answers_every_new_pipe(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let id = sandbox_id();
    backend.create(&id, spec).await.expect("create");
    for epoch in 1..=3 {
        let pipe = backend.connect(&id).await.expect("connect");
        let (link, living) = timeout(BOUND, link::establish(pipe, link::Pipe::Used, epoch))
            .await
            .expect("the guest answers in time")
            .expect("the guest answers");
        let asking = async {
            let mut control = link.control().await.expect("a control stream");
            let answer = control.call(&Request::Ping { nonce: 5 }, BOUND).await.expect("a pong");
            assert_eq!(answer, Response::Pong { nonce: 5 });
        };
        tokio::select! {
            () = asking => {}
            ended = living => panic!("the session ended: {ended:?}"),
        }
    }
    backend.destroy(&id).await.expect("destroy");
}

/// `wait` returns when the machine is gone, and at once where there is none.
pub async fn waiting_ends_with_the_machine(backend: Arc<dyn Backend>, spec: &SandboxSpec) {
    let id = sandbox_id();
    timeout(BOUND, backend.wait(&id)).await.expect("nothing to wait for");
    backend.create(&id, spec).await.expect("create");
    let waiting = tokio::spawn({
        let (backend, id) = (backend.clone(), id.clone());
        async move { backend.wait(&id).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "wait returned while the machine ran");
    backend.destroy(&id).await.expect("destroy");
    timeout(BOUND, waiting).await.expect("wait ends").expect("wait does not panic");
}

/// `connect` and `console` of an absent sandbox are errors, not waits.
pub async fn what_is_absent_is_said_to_be(backend: Arc<dyn Backend>) {
    let id = sandbox_id();
    assert!(timeout(BOUND, backend.connect(&id)).await.expect("at once").is_err());
    assert!(timeout(BOUND, backend.console(&id)).await.expect("at once").is_err());
}

/// A sandbox that `create` was interrupted in is listed or absent, and `destroy`
/// removes it.
pub async fn an_interrupted_create_leaves_nothing_unlisted(
    backend: Arc<dyn Backend>,
    spec: &SandboxSpec,
) {
    for delay in [0, 1, 5, 20, 50] {
        let id = sandbox_id();
        let before = backend.list().await.expect("list").len();
        let interrupted = timeout(Duration::from_millis(delay), backend.create(&id, spec)).await;
        if interrupted.is_err() || interrupted.is_ok_and(|made| made.is_ok()) {
            backend.destroy(&id).await.expect("destroy");
        }
        assert_eq!(backend.list().await.expect("list").len(), before);
    }
}
