//! Sandboxes.

use domain::{
    ending::{Cause, Ending},
    phase::Phase,
    size::{Resources, SizeClass},
    time::Timestamp,
};
use store::{
    Store,
    audit::AuditFilter,
    sandboxes::{Added, Fingerprint, Moved, Sandbox, SandboxFilter},
    usage::Usage,
};
use tokio::task::JoinSet;

use crate::fixture::{NOW, Tenant, add, added, line, organization, sandbox, unkeyed};

async fn end(store: &Store, sandbox: &Sandbox, cause: Cause) -> Moved {
    let line = line(&sandbox.organization, "sandbox.ended", Some(sandbox.id.as_str()));
    let ending = Ending::new(cause, "it\0ended");
    store.mark_ended(&sandbox.id, &ending, NOW, &line).await.expect("the store answers")
}

async fn n_lines(store: &Store, tenant: &Tenant) -> usize {
    let filter = AuditFilter {
        organization: tenant.organization.clone(),
        object: None,
        limit: 1000,
        before: None,
    };
    store.audit_lines(&filter).await.expect("the store answers").len()
}

/// U34: and everything that was asked for is on record.
pub(crate) async fn a_sandbox_reads_back_as_it_was_added(store: Store) {
    let tenant = organization(&store).await;
    let sandbox = added(&store, &tenant).await;
    assert_eq!(store.sandbox(&sandbox.id).await.expect("read").as_ref(), Some(&sandbox));
    assert_eq!(store.live_sandboxes().await.expect("read"), std::slice::from_ref(&sandbox));
    let mut numbers = crate::fixture::sandbox(&tenant);
    numbers.size = None;
    assert_eq!(add(&store, &numbers, &unkeyed(), 9).await, Added::New);
    assert_eq!(store.sandbox(&numbers.id).await.expect("read"), Some(numbers));
    assert_eq!(n_lines(&store, &tenant).await, 2);
}

/// B15, S61, U19: simultaneous requests get the cap and no more.
pub(crate) async fn of_many_creates_no_more_than_the_cap_succeed(store: Store) {
    let tenant = organization(&store).await;
    let mut creates = JoinSet::new();
    for _ in 0..20 {
        let (store, sandbox) = (store.clone(), sandbox(&tenant));
        creates.spawn(async move { add(&store, &sandbox, &unkeyed(), 5).await });
    }
    let outcomes = creates.join_all().await;
    let made = outcomes.iter().filter(|outcome| **outcome == Added::New).count();
    let full = outcomes.iter().filter(|outcome| **outcome == Added::Full { in_use: 5 }).count();
    assert_eq!((made, full), (5, 15), "{outcomes:?}");
    assert_eq!(store.count_live_sandboxes(&tenant.organization).await.expect("read"), 5);
    assert_eq!(n_lines(&store, &tenant).await, 5);
}

pub(crate) async fn a_cap_is_for_each_organisation(store: Store) {
    let (tenant, other) = (organization(&store).await, organization(&store).await);
    added(&store, &tenant).await;
    assert_eq!(add(&store, &sandbox(&other), &unkeyed(), 1).await, Added::New);
    assert_eq!(add(&store, &sandbox(&other), &unkeyed(), 1).await, Added::Full { in_use: 1 });
}

/// S14: what is promised is summed for each organisation, and what ended counts
/// no more.
pub(crate) async fn what_sandboxes_take_is_summed(store: Store) {
    let (tenant, other) = (organization(&store).await, organization(&store).await);
    assert_eq!(store.usage().await.expect("sums"), []);
    let first = added(&store, &tenant).await;
    added(&store, &tenant).await;
    added(&store, &other).await;
    let sums = store.usage().await.expect("sums");
    let one = Resources::of(SizeClass::Medium);
    for (tenant, sandboxes) in [(&tenant, 2), (&other, 1)] {
        let of = |usage: &&Usage| usage.organization == tenant.organization;
        let found = sums.iter().find(of).expect("a sum");
        assert!(found.placed && found.phase == Phase::Provisioning);
        assert_eq!(found.sandboxes, sandboxes);
        assert_eq!(found.cpus, u64::from(one.cpus) * u64::from(sandboxes));
        assert_eq!(found.memory_mib, u64::from(one.memory_mib) * u64::from(sandboxes));
        assert_eq!(found.disk_mib, u64::from(one.disk_mib) * u64::from(sandboxes));
    }
    assert_eq!(end(&store, &first, Cause::GuestLost).await, Moved::Yes);
    let left: u32 = store.usage().await.expect("sums").iter().map(|sum| sum.sandboxes).sum();
    assert_eq!(left, 2);
}

pub(crate) async fn an_ended_sandbox_frees_its_place(store: Store) {
    let tenant = organization(&store).await;
    let first = added(&store, &tenant).await;
    assert_eq!(add(&store, &sandbox(&tenant), &unkeyed(), 1).await, Added::Full { in_use: 1 });
    assert_eq!(end(&store, &first, Cause::GuestLost).await, Moved::Yes);
    assert_eq!(add(&store, &sandbox(&tenant), &unkeyed(), 1).await, Added::New);
}

pub(crate) async fn a_repeated_request_makes_one_sandbox(store: Store) {
    let tenant = organization(&store).await;
    let fingerprint = Fingerprint { key: Some("key".to_owned()), request: "same".to_owned() };
    let mut creates = JoinSet::new();
    for _ in 0..8 {
        let (store, sandbox, fingerprint) = (store.clone(), sandbox(&tenant), fingerprint.clone());
        creates.spawn(async move {
            match add(&store, &sandbox, &fingerprint, 100).await {
                Added::New => sandbox.id,
                Added::Repeated(first) => first.id,
                other => panic!("{other:?}"),
            }
        });
    }
    let ids = creates.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(store.live_sandboxes().await.expect("read").len(), 1);
    // Requests without a key never repeat one another.
    added(&store, &tenant).await;
    added(&store, &tenant).await;
}

pub(crate) async fn a_key_is_for_one_request(store: Store) {
    let tenant = organization(&store).await;
    let fingerprint =
        |request: &str| Fingerprint { key: Some("key".to_owned()), request: request.to_owned() };
    assert_eq!(add(&store, &sandbox(&tenant), &fingerprint("a"), 9).await, Added::New);
    assert_eq!(add(&store, &sandbox(&tenant), &fingerprint("b"), 9).await, Added::KeyReused);
}

pub(crate) async fn of_many_endings_one_counts(store: Store) {
    let tenant = organization(&store).await;
    let sandbox = added(&store, &tenant).await;
    let mut endings = JoinSet::new();
    for index in 0..15 {
        let (store, sandbox) = (store.clone(), sandbox.clone());
        let cause = Cause::ALL[index % Cause::ALL.len()];
        endings.spawn(async move { (end(&store, &sandbox, cause).await, cause) });
    }
    let outcomes = endings.join_all().await;
    let winners: Vec<_> = outcomes.iter().filter(|(moved, _)| *moved == Moved::Yes).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let row = store.sandbox(&sandbox.id).await.expect("read").expect("it is kept");
    assert_eq!(row.phase, winners[0].1.phase());
    assert_eq!(row.ending, Some(Ending::new(winners[0].1, "it ended")));
    // One for the create and one for the end.
    assert_eq!(n_lines(&store, &tenant).await, 2);
}

pub(crate) async fn a_list_is_paged_newest_first(store: Store) {
    let (tenant, other) = (organization(&store).await, organization(&store).await);
    let mut all = Vec::new();
    for index in 0..5_i64 {
        let mut sandbox = sandbox(&tenant);
        // Two of the same time, so that the id decides.
        sandbox.created = Timestamp(NOW.0 + index / 2);
        assert_eq!(add(&store, &sandbox, &unkeyed(), 9).await, Added::New);
        all.push(sandbox);
    }
    added(&store, &other).await;
    all.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
    let mut filter = SandboxFilter {
        organization: tenant.organization.clone(),
        phase: None,
        limit: 2,
        after: None,
    };
    let mut listed = Vec::new();
    loop {
        let page = store.sandboxes(&filter).await.expect("read");
        let Some(last) = page.last() else { break };
        filter.after = Some((last.created, last.id.clone()));
        listed.extend(page);
    }
    assert_eq!(listed, all);

    assert_eq!(end(&store, &all[1], Cause::Requested).await, Moved::Yes);
    filter = SandboxFilter { phase: Some(Phase::Terminated), after: None, ..filter };
    let ended = store.sandboxes(&filter).await.expect("read");
    assert_eq!(ended.iter().map(|row| &row.id).collect::<Vec<_>>(), [&all[1].id]);
}

pub(crate) async fn a_refused_transition_writes_no_line(store: Store) {
    let tenant = organization(&store).await;
    let sandbox = added(&store, &tenant).await;
    assert_eq!(end(&store, &sandbox, Cause::Requested).await, Moved::Yes);
    let before = n_lines(&store, &tenant).await;
    let line = line(&tenant.organization, "sandbox.running", Some(sandbox.id.as_str()));
    let moved = store.mark_running(&sandbox.id, NOW, &line).await.expect("the store answers");
    assert_eq!(moved, Moved::No);
    assert_eq!(n_lines(&store, &tenant).await, before);
}
