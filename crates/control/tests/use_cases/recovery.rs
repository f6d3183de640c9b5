//! What a server does when it comes back.

use std::time::Duration;

use control::{guest::GuestCall, recovery::Recovered, sandboxes::Sandbox};
use domain::{
    ending::Cause,
    id::{Alias, AuditId},
    phase::Phase,
};
use sandbox::backend::Backend as _;
use store::{
    audit::{AuditLine, Outcome},
    sandboxes::{Added, Fingerprint, Moved},
};
use testkit::fixtures::{distinct_bytes, sandbox_id, sources, spec};

use crate::fixture::{Installation, request};

fn line(of: &Sandbox) -> AuditLine {
    AuditLine {
        id: AuditId::from_random(distinct_bytes()),
        time: (sources().clock)(),
        organization: of.organization.clone(),
        user: None,
        token: None,
        action: "test".to_owned(),
        object: Some(of.id.to_string()),
        outcome: Outcome::Allowed,
        detail: serde_json::Map::new(),
    }
}

/// K17: processes of a running sandbox go on, and it answers as before.
#[tokio::test]
async fn a_running_sandbox_is_taken_over() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let it = it.restarted().await;
    let recovered = it.control.recover().await.expect("it recovers");
    assert_eq!(recovered, Recovered { adopted: 1, ..Recovered::default() });
    let seen = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("it is there");
    assert_eq!(seen, sandbox);
    it.control
        .open_guest(&it.caller, &sandbox.id, &GuestCall::Health)
        .await
        .expect("it answers as before");
    let guest = it.backend.fake.guest(&sandbox.id).expect("a guest");
    assert_eq!(guest.identified(), 1, "its identity is given once");
    it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("ended");
    assert_eq!(it.machines().await, []);
}

#[tokio::test]
async fn a_half_made_sandbox_is_removed_and_failed() {
    let it = Installation::new().await;
    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    // What a server leaves that is killed between recording and starting.
    let half = Sandbox {
        id: sandbox_id(),
        alias: Alias::from_random(distinct_bytes()),
        phase: Phase::Provisioning,
        started: None,
        expires: None,
        ..made.clone()
    };
    let fingerprint = Fingerprint { key: None, request: String::new() };
    let added = it.store.add_sandbox(&half, &fingerprint, 9, &line(&half)).await;
    assert_eq!(added.expect("the store answers"), Added::New);
    it.backend.create(&half.id, &spec()).await.expect("a machine");
    let it = it.restarted().await;
    let recovered = it.control.recover().await.expect("it recovers");
    assert_eq!(recovered, Recovered { adopted: 1, ended: 1, removed: 1, ..Recovered::default() });
    let row = it.control.get_sandbox(&it.caller, &half.id).await.expect("on record");
    assert_eq!(row.phase, Phase::Failed);
    assert_eq!(row.ending.map(|ending| ending.cause), Some(Cause::StartFailed));
    assert_eq!(it.machines().await, [made.id]);
}

#[tokio::test]
async fn a_wish_to_end_a_sandbox_survives() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    // What a server leaves that is killed between recording the wish and acting.
    let moved = it.store.mark_ending(&sandbox.id, Cause::Requested, &line(&sandbox)).await;
    assert_eq!(moved.expect("the store answers"), Moved::Yes);
    let it = it.restarted().await;
    let recovered = it.control.recover().await.expect("it recovers");
    assert_eq!(recovered, Recovered { ended: 1, removed: 1, ..Recovered::default() });
    let row = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("on record");
    assert_eq!(row.phase, Phase::Terminated);
    assert_eq!(row.ending.map(|ending| ending.cause), Some(Cause::Requested));
    assert_eq!(it.machines().await, []);
}

/// A server that stops does not wait for a start; the next one removes it.
#[tokio::test]
async fn a_start_is_given_up_when_the_server_stops() {
    let it = Installation::new().await;
    it.backend.close();
    let create = tokio::spawn({
        let (control, caller) = (it.control.clone(), it.caller.clone());
        async move { control.create_sandbox(&caller, request()).await }
    });
    while it.store.live_sandboxes().await.expect("read").is_empty() {
        tokio::task::yield_now().await;
    }
    it.control.shut_down(Duration::from_secs(60)).await;
    let error = create.await.expect("an answer").expect_err("it was not started");
    assert_eq!(error.code(), "unavailable");
    let it = it.restarted().await;
    let recovered = it.control.recover().await.expect("it recovers");
    assert_eq!(recovered, Recovered { ended: 1, ..Recovered::default() });
    assert_eq!(it.machines().await, []);
}

#[tokio::test]
async fn a_machine_that_nobody_remembers_is_removed() {
    let it = Installation::new().await;
    it.backend.create(&sandbox_id(), &spec()).await.expect("a machine");
    let recovered = it.control.recover().await.expect("it recovers");
    assert_eq!(recovered, Recovered { removed: 1, ..Recovered::default() });
    assert_eq!(it.machines().await, []);
    assert_eq!(it.control.recover().await.expect("again"), Recovered::default());
}

#[tokio::test]
async fn a_sandbox_whose_machine_is_gone_is_failed() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let it = it.restarted().await;
    it.backend.destroy(&sandbox.id).await.expect("gone");
    it.control.recover().await.expect("it recovers");
    // The driver may have finished before this asks.
    drop(it.host.ended(&sandbox.id).await);
    let row = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("on record");
    assert_eq!(row.phase, Phase::Failed);
}
