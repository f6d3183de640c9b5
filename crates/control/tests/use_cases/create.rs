//! Making sandboxes.

use std::{collections::BTreeMap, time::Duration};

use control::{
    error::{ConflictCode, Error},
    sandboxes::{
        ListSandboxes, NewSandbox, Sandbox,
        request::{IdempotencyKey, Metadata, SizeChoice, Timeout},
    },
    settings::TierLimits,
};
use domain::{
    ending::Cause, environment::Environment, mode::EgressMode, phase::Phase, size::Resources,
};
use tokio::task::JoinSet;

use crate::{
    egress::network,
    fixture::{Installation, request, sqlite_url},
};

/// Waits until the store says that the only sandbox is in `phase`.
async fn only(installation: &Installation, phase: Phase) -> Sandbox {
    loop {
        let query = ListSandboxes { phase: Some(phase), ..ListSandboxes::default() };
        let page = installation.control.list_sandboxes(&installation.caller, query).await;
        if let Some(sandbox) = page.expect("a list").items.pop() {
            return sandbox;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn keyed(key: &str) -> NewSandbox {
    let key = IdempotencyKey::new(key.to_owned()).expect("a key");
    NewSandbox { idempotency_key: Some(key), ..request() }
}

/// S65, S71, U34, S66
#[tokio::test]
async fn a_sandbox_is_made_and_its_time_limit_counts_from_when_it_runs() {
    let it = Installation::new().await;
    let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    let new = NewSandbox {
        size: SizeChoice::Explicit { cpus: 2, memory_mib: 1024 },
        timeout: Timeout::seconds(60).expect("a time limit"),
        metadata: Metadata::new(labels.clone()).expect("labels"),
        ..request()
    };
    let sandbox = it.control.create_sandbox(&it.caller, new).await.expect("it starts");
    assert!(sandbox.id.as_str().starts_with("sbx_"));
    assert_ne!(&sandbox.id.as_str()[4..], sandbox.alias.as_str());
    assert_eq!(sandbox.phase, Phase::Running);
    assert_eq!(sandbox.size, None);
    assert_eq!(sandbox.resources, Resources::explicit(2, 1024).expect("resources"));
    assert_eq!(sandbox.metadata, labels);
    let started = sandbox.started.expect("it runs");
    assert_eq!(sandbox.expires, Some(started.plus(Duration::from_secs(60))));
    assert_eq!(it.actions(&sandbox.id).await, ["sandbox.create", "sandbox.running"]);
    let seen = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("it is there");
    assert_eq!(seen, sandbox);
}

/// S27, S28, S29, U8: the value reaches the guest and nothing that is stored.
#[tokio::test]
async fn a_value_of_the_environment_is_nowhere_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let it = Installation::with(TierLimits::default(), &sqlite_url(folder.path())).await;
    let value = "correct horse battery staple";
    let environment = Environment::new([("KEY".to_owned(), value.to_owned())]).expect("variables");
    let new = NewSandbox { environment, ..keyed("a") };
    let sandbox = it.control.create_sandbox(&it.caller, new).await.expect("it starts");
    let told = it.backend.fake.guest(&sandbox.id).expect("a guest").identity().expect("identity");
    assert_eq!(told.environment, [("KEY".to_owned(), value.to_owned())]);
    for entry in std::fs::read_dir(folder.path()).expect("the folder") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        assert!(!bytes.windows(value.len()).any(|window| window == value.as_bytes()));
    }
}

/// K16: it names the cause, nothing is left, and its place is free.
#[tokio::test]
async fn a_start_that_fails_is_on_record_with_its_cause() {
    let tier = TierLimits { max_concurrent: 1, ..TierLimits::default() };
    let it = Installation::with(tier, "sqlite::memory:").await;
    it.backend.fake.fail_create(Some("no memory for it"));
    let error = it.control.create_sandbox(&it.caller, request()).await.expect_err("it fails");
    let Error::StartFailed { id, ending } = error else { panic!("{error:?}") };
    assert!(ending.detail.contains("no memory for it"), "{ending}");
    let row = it.control.get_sandbox(&it.caller, &id).await.expect("it is on record");
    assert_eq!(row.phase, Phase::Failed);
    assert_eq!(row.ending, Some(ending));
    assert_eq!(it.machines().await, []);
    it.backend.fake.fail_create(None);
    it.control.create_sandbox(&it.caller, request()).await.expect("its place is free");
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_a_sandbox_that_its_owner_can_see() {
    let it = Installation::new().await;
    it.backend.close();
    let create = tokio::spawn({
        let (control, caller) = (it.control.clone(), it.caller.clone());
        async move { control.create_sandbox(&caller, request()).await }
    });
    let pending = only(&it, Phase::Provisioning).await;
    create.abort();
    assert!(create.await.expect_err("it was hung up").is_cancelled());
    it.backend.open();
    let sandbox = only(&it, Phase::Running).await;
    assert_eq!(sandbox.id, pending.id);
    assert!(sandbox.expires.is_some(), "it has a time limit");
    it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("it can be ended");
}

#[tokio::test]
async fn a_repeated_create_makes_one_sandbox() {
    let it = Installation::new().await;
    it.backend.close();
    let mut creates = JoinSet::new();
    for _ in 0..4 {
        let (control, caller) = (it.control.clone(), it.caller.clone());
        creates.spawn(async move { control.create_sandbox(&caller, keyed("a")).await });
    }
    only(&it, Phase::Provisioning).await;
    it.backend.open();
    let made: Vec<_> =
        creates.join_all().await.into_iter().map(|made| made.expect("it starts").id).collect();
    assert!(made.iter().all(|id| *id == made[0]), "{made:?}");
    assert_eq!(it.machines().await, [made[0].clone()]);

    let again = it.control.create_sandbox(&it.caller, keyed("a")).await.expect("the same");
    assert_eq!(again.id, made[0]);
    let other = it.control.create_sandbox(&it.caller, keyed("b")).await.expect("another");
    assert_ne!(other.id, made[0]);
    let stranger = it.stranger().await;
    let theirs = it.control.create_sandbox(&stranger, keyed("a")).await.expect("their own");
    assert_ne!(theirs.id, made[0]);

    let changed = NewSandbox { timeout: Timeout::seconds(99).expect("a limit"), ..keyed("a") };
    let error = it.control.create_sandbox(&it.caller, changed).await.expect_err("another request");
    assert!(matches!(error, Error::Conflict { code: ConflictCode::IdempotencyKeyReused, .. }));
}

/// B15, S57, S61
#[tokio::test]
async fn an_organisation_gets_what_its_tier_has_and_no_more() {
    let tier = TierLimits { max_concurrent: 2, ..TierLimits::default() };
    let it = Installation::with(tier, "sqlite::memory:").await;
    let mut creates = JoinSet::new();
    for _ in 0..6 {
        let (control, caller) = (it.control.clone(), it.caller.clone());
        creates.spawn(async move { control.create_sandbox(&caller, request()).await });
    }
    let outcomes = creates.join_all().await;
    let full = |error: &Error| matches!(error, Error::QuotaExceeded { limit: 2, in_use: 2, .. });
    assert_eq!(outcomes.iter().filter(|made| made.is_ok()).count(), 2);
    assert_eq!(outcomes.iter().filter(|made| made.as_ref().is_err_and(full)).count(), 4);
    assert_eq!(it.machines().await.len(), 2);
    let limits = it.control.limits(&it.caller).await.expect("limits");
    assert_eq!((limits.in_use, limits.max_concurrent), (2, 2));
    let refused = it.lines(&it.caller).await;
    let refused = refused.iter().filter(|line| line.detail.get("code").is_some());
    assert!(refused.clone().all(|line| line.detail["code"] == "quota_exceeded"));
    assert_eq!(refused.count(), 4);
}

/// U18, S61, S62, S64, U20: each with a code and the field.
#[tokio::test]
async fn what_cannot_be_made_is_refused_before_anything_is_done() {
    let tier = TierLimits { max_cpus: 2, max_memory_mib: 2048, max_concurrent: 9 };
    let it = Installation::with(tier, "sqlite::memory:").await;
    let template = |name: &str| NewSandbox::new(name.parse().expect("a name"));
    let explicit = |cpus, memory_mib| NewSandbox {
        size: SizeChoice::Explicit { cpus, memory_mib },
        ..request()
    };
    let region = "eu".parse().expect("a region");
    for (new, code, word) in [
        (template("nothing"), "invalid_request", "template"),
        (template("broken"), "image_refused", "broken"),
        (explicit(3, 512), "invalid_request", "cpus"),
        (explicit(1, 999_999), "invalid_request", "memory_mb"),
        (explicit(1, 1), "invalid_request", "memory_mb"),
        (NewSandbox { region: Some(region), ..request() }, "invalid_request", "region"),
        (
            NewSandbox { network: network(EgressMode::Open, None), ..request() },
            "mode_unavailable",
            "open",
        ),
        (
            NewSandbox { network: network(EgressMode::Off, Some(&["a.test"])), ..request() },
            "invalid_request",
            "allow",
        ),
    ] {
        let before = it.lines(&it.caller).await.len();
        let error = it.control.create_sandbox(&it.caller, new).await.expect_err("refused");
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        let lines = it.lines(&it.caller).await;
        assert_eq!(lines.len(), before + 1);
        assert_eq!(lines[before].detail["code"], code);
    }
    assert_eq!(it.machines().await, []);
    assert_eq!(it.store.live_sandboxes().await.expect("read"), []);
}

#[tokio::test]
async fn ending_a_sandbox_that_is_being_made_ends_it() {
    let it = Installation::new().await;
    it.backend.close();
    let create = tokio::spawn({
        let (control, caller) = (it.control.clone(), it.caller.clone());
        async move { control.create_sandbox(&caller, request()).await }
    });
    let pending = only(&it, Phase::Provisioning).await;
    it.control.terminate_sandbox(&it.caller, &pending.id).await.expect("ended");
    it.backend.open();
    let error = create.await.expect("an answer").expect_err("it was ended");
    assert!(matches!(error, Error::StartFailed { .. }), "{error:?}");
    let row = it.control.get_sandbox(&it.caller, &pending.id).await.expect("on record");
    assert_eq!(row.phase, Phase::Terminated);
    assert_eq!(row.ending.map(|ending| ending.cause), Some(Cause::Requested));
    assert_eq!(it.machines().await, []);
}
