//! Machines that are made ahead.

use control::{
    pool::{PoolSettings, Ready},
    recovery::Recovered,
    sandboxes::{ListSandboxes, NewSandbox, request::SizeChoice},
    settings::TierLimits,
};
use domain::{phase::Phase, size::SizeClass};
use sandbox::backend::Backend as _;

use crate::fixture::{Installation, request};

fn ready(count: u32, memory_mib: u64) -> PoolSettings {
    let ready = Ready { template: "base".parse().expect("a name"), size: SizeClass::Small, count };
    PoolSettings { ready: vec![ready], memory_mib }
}

/// A claim takes a machine over that nobody was; no list shows the others.
#[tokio::test]
async fn a_claimed_machine_becomes_the_sandbox() {
    let it = Installation::new().await.pooled(ready(2, 4096)).await;
    assert!(it.control.fill_pool().await);
    let waiting = it.machines().await;
    assert_eq!(waiting.len(), 2);
    for id in &waiting {
        assert_eq!(it.backend.fake.guest(id).expect("a guest").identified(), 0);
    }
    let listed = it.control.list_sandboxes(&it.caller, ListSandboxes::default()).await;
    assert_eq!(listed.expect("a list").items, []);

    let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    assert!(waiting.contains(&made.id), "it was not taken from the pool");
    assert_eq!(made.phase, Phase::Running);
    assert_eq!(it.backend.fake.guest(&made.id).expect("a guest").identified(), 1);
    assert_eq!(it.machines().await.len(), 2);
    // Another size is not ready.
    let medium = NewSandbox { size: SizeChoice::Class(SizeClass::Medium), ..request() };
    let made = it.control.create_sandbox(&it.caller, medium).await.expect("it starts");
    assert!(!waiting.contains(&made.id));
    assert!(it.control.fill_pool().await);
    assert_eq!(it.machines().await.len(), 4);
}

/// What does not fit into the memory of the pool is not made.
#[tokio::test]
async fn a_pool_is_bounded_by_memory() {
    let it = Installation::new().await.pooled(ready(10, 1100)).await;
    it.control.fill_pool().await;
    assert_eq!(it.machines().await.len(), 2);
}

/// A refused create gives its machine up, and a machine that died is replaced.
#[tokio::test]
async fn nothing_of_a_pool_is_left_without_an_owner() {
    let it = Installation::new().await;
    let tier = TierLimits { max_concurrent: 0, ..TierLimits::default() };
    let it = it.pooled_with(ready(1, 4096), tier).await;
    assert!(it.control.fill_pool().await);
    let error = it.control.create_sandbox(&it.caller, request()).await.expect_err("refused");
    assert_eq!(error.code(), "quota_exceeded");
    assert_eq!(it.machines().await, []);
    assert!(it.control.fill_pool().await);
    let waiting = it.machines().await;
    it.backend.fake.crash(&waiting[0], "it crashed");
    while it.machines().await == waiting {
        tokio::task::yield_now().await;
    }
    assert!(it.control.fill_pool().await);
    assert_eq!(it.machines().await.len(), 1);
}

/// After a kill the pool is a set of machines that nobody remembers.
#[tokio::test]
async fn a_pool_does_not_outlive_its_server() {
    let it = Installation::new().await.pooled(ready(2, 4096)).await;
    assert!(it.control.fill_pool().await);
    let it = it.restarted().await;
    let recovered = it.control.recover().await.expect("it recovers");
    assert_eq!(recovered, Recovered { removed: 2, ..Recovered::default() });
    assert_eq!(it.backend.list().await.expect("a list"), []);
}
