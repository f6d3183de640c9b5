//! The contract of every backend.

use std::sync::Arc;

use backends::qemu::Lifetime;
use sandbox::backend::Backend;
use testkit::contract;

use crate::rig::Rig;

/// S2, S3, K15
#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds() {
    let Some(rig) = Rig::open("contract", Lifetime::Outlives).await else { return };
    let backend = || Arc::clone(&rig.backend) as Arc<dyn Backend>;
    contract::creating_twice_makes_one_sandbox(backend(), &rig.spec).await;
    contract::destroying_what_is_absent_succeeds(backend(), &rig.spec).await;
    contract::a_guest_answers_every_new_pipe(backend(), &rig.spec).await;
    contract::waiting_ends_with_the_machine(backend(), &rig.spec).await;
    contract::what_is_absent_is_said_to_be(backend()).await;
    contract::an_interrupted_create_leaves_nothing_unlisted(backend(), &rig.spec).await;
}

/// S33, S37, S49, U40
#[tokio::test(flavor = "multi_thread")]
async fn the_contract_of_snapshots_holds() {
    let Some(rig) = Rig::for_snapshots("contract-snapshots").await else { return };
    let backend = Arc::clone(&rig.backend) as Arc<dyn Backend>;
    contract::snapshots::all(backend, &rig.spec).await;
}
