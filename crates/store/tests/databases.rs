//! One list of facts, checked on every database.
//!
//! A case gets an empty database of its own. SQLite runs in a file and in
//! memory, Postgres in a server that this test starts and ends; where its
//! programs are missing that half says `not run:`.

#[path = "databases/audit.rs"]
mod audit;
#[path = "databases/egress.rs"]
mod egress;
#[path = "databases/fixture.rs"]
mod fixture;
#[path = "databases/installation.rs"]
mod installation;
#[path = "databases/model.rs"]
mod model;
#[path = "databases/sandboxes.rs"]
mod sandboxes;
#[path = "databases/snapshots.rs"]
mod snapshots;
#[path = "databases/templates.rs"]
mod templates;
#[path = "databases/tokens.rs"]
mod tokens;
#[path = "databases/volumes.rs"]
mod volumes;

use std::{os::unix::fs::PermissionsExt as _, pin::Pin};

use store::{Store, error::StoreError, sealing::Sealing};
use testkit::postgres::Postgres;

/// A fact about a store that has nothing in it yet.
type Case = fn(Store) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    ($($case:path),* $(,)?) => {
        [$((stringify!($case), (|store| Box::pin($case(store))) as Case)),*]
    };
}

fn cases() -> Vec<(&'static str, Case)> {
    cases![
        installation::an_installation_is_made_once,
        installation::nothing_is_made_unless_committed,
        installation::an_installation_stays_in_its_region,
        audit::lines_are_read_newest_first_and_by_object,
        tokens::a_token_is_found_by_its_hash_alone,
        tokens::a_revoked_token_is_revoked_once,
        tokens::a_token_of_another_organisation_is_unknown,
        sandboxes::a_sandbox_reads_back_as_it_was_added,
        sandboxes::of_many_creates_no_more_than_the_cap_succeed,
        sandboxes::a_cap_is_for_each_organisation,
        sandboxes::what_sandboxes_take_is_summed,
        sandboxes::an_ended_sandbox_frees_its_place,
        sandboxes::a_repeated_request_makes_one_sandbox,
        sandboxes::a_key_is_for_one_request,
        sandboxes::of_many_endings_one_counts,
        sandboxes::a_list_is_paged_newest_first,
        sandboxes::a_refused_transition_writes_no_line,
        snapshots::a_snapshot_is_made_and_goes,
        snapshots::a_snapshots_name_is_one_in_an_organisation,
        snapshots::a_pause_keeps_what_is_left_of_the_time,
        snapshots::a_pause_at_the_time_limit_gives_all_of_it_again,
        snapshots::of_many_resumes_one_begins,
        snapshots::a_resume_beyond_the_cap_is_refused,
        snapshots::an_ended_sandbox_leaves_no_key,
        snapshots::what_is_to_end_is_not_paused,
        snapshots::copies_come_together_or_not_at_all,
        templates::a_name_is_bound_to_the_last_build,
        templates::a_template_of_another_organisation_is_unknown,
        templates::steps_go_with_the_template_that_used_them_last,
        templates::the_steps_used_last_are_kept,
        templates::a_build_is_on_record_while_it_lasts,
        egress::rules_change_by_compare_and_set,
        egress::an_account_has_one_session_at_a_time,
        egress::sessions_are_bounded_and_end_once,
        egress::a_log_is_paged_followed_and_pruned,
        volumes::a_volume_reads_back_as_it_was_added,
        volumes::volumes_together_are_no_larger_than_they_may_be,
        volumes::a_lease_has_one_holder,
        volumes::a_lease_ends_with_its_sandbox,
        volumes::a_sandbox_has_two_volumes_in_different_places,
        volumes::checkpoints_hold_what_they_need,
        model::transitions_are_those_of_the_model,
    ]
    .to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_in_memory_keeps_every_fact() {
    for (name, case) in cases() {
        println!("sqlite::memory: {name}");
        case(open("sqlite::memory:").await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_in_a_file_keeps_every_fact() {
    let folder = tempfile::tempdir().expect("a folder");
    for (index, (name, case)) in cases().into_iter().enumerate() {
        println!("sqlite:// {name}");
        let url = format!("sqlite://{}", folder.path().join(format!("{index}.db")).display());
        let store = open(&url).await;
        case(store.clone()).await;
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_every_fact() {
    let Some(server) = Postgres::start() else { return };
    for (name, case) in cases() {
        println!("postgres:// {name}");
        let store = open(&server.database()).await;
        case(store.clone()).await;
        store.close().await;
    }
}

async fn open(url: &str) -> Store {
    let store = Store::open(url).await.expect("it opens");
    store.with_sealing(Sealing::from_random([9; 32]))
}

/// A sealing key is made once. One that is missing or another one is an error
/// while there is a snapshot, and never replaced.
#[tokio::test]
async fn a_missing_sealing_key_is_an_error_while_it_is_needed() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("keys.db").display());
    let path = folder.path().join("snapshots.key");
    let open = async |path: &std::path::Path| {
        Store::open(&url).await.expect("it opens").with_sealing_key(path).await
    };
    let store = open(&path).await.expect("the first start makes it");
    let kept = std::fs::read(&path).expect("the key");
    snapshots::kept(&store).await;
    store.close().await;
    open(&path).await.expect("the same key").close().await;

    let other = folder.path().join("other.key");
    std::fs::write(&other, "00".repeat(32)).expect("written");
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).expect("private");
    let error = open(&other).await.expect_err("another key").to_string();
    assert!(error.contains("is not the one"), "{error}");

    std::fs::rename(&path, folder.path().join("away")).expect("moved");
    let error = open(&path).await.expect_err("no key").to_string();
    assert!(error.contains("is missing") && error.contains("backup"), "{error}");
    assert!(!path.exists(), "a new key was made");
    std::fs::rename(folder.path().join("away"), &path).expect("moved back");
    open(&path).await.expect("it is back").close().await;
    assert_eq!(std::fs::read(&path).expect("the key"), kept);
}

/// K17: what was there is there after closing, migrating again and opening.
async fn reopens(url: String) {
    let store = Store::open(&url).await.expect("it opens");
    let organization = fixture::organization(&store).await;
    let sandbox = fixture::added(&store, &organization).await;
    store.close().await;
    let store = Store::open(&url).await.expect("it opens again");
    let found = store.sandbox(&sandbox.id).await.expect("it answers");
    assert_eq!(found, Some(sandbox));
    store.close().await;
}

#[tokio::test]
async fn a_database_is_the_same_after_it_is_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    reopens(format!("sqlite://{}", folder.path().join("again.db").display())).await;
    if let Some(server) = Postgres::start() {
        reopens(server.database()).await;
    }
}

#[tokio::test]
async fn a_file_is_its_owners_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("private.db");
    let store = Store::open(&format!("sqlite://{}", path.display())).await.expect("it opens");
    fixture::organization(&store).await;
    for entry in std::fs::read_dir(folder.path()).expect("the folder") {
        let metadata = entry.expect("an entry").metadata().expect("its metadata");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
    store.close().await;
}

#[tokio::test]
async fn a_url_that_is_no_database_is_named_without_its_password() {
    for url in ["", "mysql://root:hunter2@db/x", "/var/lib/x.db", "postgres://a:hunter2@[/x"] {
        let error = Store::open(url).await.expect_err("it is refused");
        assert!(matches!(error, StoreError::Url(_)), "{error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
