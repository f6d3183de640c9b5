//! The fake backend keeps the contract that the real ones keep.

use std::sync::Arc;

use testkit::{contract, fake_backend::FakeBackend, fixtures};

#[tokio::test]
async fn the_fake_backend_keeps_the_contract() {
    let backend = Arc::new(FakeBackend::default());
    let spec = fixtures::spec();
    contract::creating_twice_makes_one_sandbox(backend.clone(), &spec).await;
    contract::destroying_what_is_absent_succeeds(backend.clone(), &spec).await;
    contract::a_guest_answers_every_new_pipe(backend.clone(), &spec).await;
    contract::waiting_ends_with_the_machine(backend.clone(), &spec).await;
    contract::what_is_absent_is_said_to_be(backend.clone()).await;
    contract::an_interrupted_create_leaves_nothing_unlisted(backend, &spec).await;
}

#[tokio::test]
async fn the_fake_backend_keeps_the_contract_of_snapshots() {
    let backend = Arc::new(FakeBackend::default());
    contract::snapshots::all(backend, &fixtures::spec()).await;
}
