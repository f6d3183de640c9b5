//! Rules, sessions and the log of the gateway.

use domain::{
    id::{SandboxId, SessionId},
    mode::EgressMode,
    time::Timestamp,
};
use store::{
    Store,
    egress::{Egress, EgressFilter, EgressLine},
    sandboxes::Moved,
    sessions::{Session, SessionAdded},
};
use testkit::fixtures::distinct_bytes;
use tokio::task::JoinSet;

use crate::fixture::{NOW, Tenant, add, added, line, organization, sandbox, unkeyed};

fn egress(generation: i64) -> Egress {
    Egress {
        allow: vec!["preset:x".to_owned(), "good.test".to_owned()],
        entries: ["good.test", "http://*.wide.test:8080"]
            .map(|entry| entry.parse().expect("an entry"))
            .to_vec(),
        generation,
    }
}

/// U3: of two changes at once, one wins and the other learns it.
pub(crate) async fn rules_change_by_compare_and_set(store: Store) {
    let tenant = organization(&store).await;
    let mut asked = sandbox(&tenant);
    (asked.network, asked.egress) = (EgressMode::Restricted, egress(1));
    add(&store, &asked, &unkeyed(), 9).await;
    assert_eq!(store.sandbox(&asked.id).await.expect("read").as_ref(), Some(&asked));

    let mut changes = JoinSet::new();
    for _ in 0..6 {
        let (store, id) = (store.clone(), asked.id.clone());
        let line = line(&tenant.organization, "egress.set", Some(id.as_str()));
        changes.spawn(async move {
            store
                .set_egress(&id, 1, EgressMode::Brokered, &egress(2), &line)
                .await
                .expect("it answers")
        });
    }
    let won = changes.join_all().await.into_iter().filter(|moved| *moved == Moved::Yes).count();
    assert_eq!(won, 1);
    let row = store.sandbox(&asked.id).await.expect("read").expect("it is there");
    assert_eq!((row.network, row.egress), (EgressMode::Brokered, egress(2)));
}

fn session(tenant: &Tenant, sandbox: &SandboxId, uid: u32) -> Session {
    Session {
        id: SessionId::from_random(distinct_bytes()),
        sandbox: sandbox.clone(),
        organization: tenant.organization.clone(),
        owner: tenant.user.clone(),
        region: domain::region::Region::local(),
        uid,
        attended: uid % 2 == 1,
        created: Timestamp(NOW.0 + i64::from(uid)),
        ended: None,
    }
}

async fn begin(store: &Store, session: &Session) -> SessionAdded {
    let line = line(&session.organization, "session.create", Some(session.id.as_str()));
    store.add_session(session, 3, &line).await.expect("the store answers")
}

/// W29: an account names one session.
pub(crate) async fn an_account_has_one_session_at_a_time(store: Store) {
    let tenant = organization(&store).await;
    let (one, two) = (added(&store, &tenant).await, added(&store, &tenant).await);
    let first = session(&tenant, &one.id, 2001);
    assert_eq!(begin(&store, &first).await, SessionAdded::Yes);
    assert_eq!(begin(&store, &session(&tenant, &one.id, 2001)).await, SessionAdded::Taken);
    assert_eq!(begin(&store, &session(&tenant, &two.id, 2001)).await, SessionAdded::Yes);
    assert_eq!(store.sessions(&one.id).await.expect("read"), std::slice::from_ref(&first));
    // Each change is a new generation of the rules.
    let row = store.sandbox(&one.id).await.expect("read").expect("it is there");
    assert_eq!(row.egress.generation, 2);

    let ended = line(&tenant.organization, "session.end", Some(first.id.as_str()));
    let end = |sandbox: SandboxId| {
        let (store, id, ended) = (&store, &first.id, &ended);
        async move { store.end_session(&sandbox, id, NOW, ended).await.expect("it answers") }
    };
    assert_eq!(end(two.id.clone()).await, Moved::No);
    assert_eq!(end(one.id.clone()).await, Moved::Yes);
    assert_eq!(end(one.id.clone()).await, Moved::No);
    assert!(store.sessions(&one.id).await.expect("read").is_empty());
    assert_eq!(begin(&store, &session(&tenant, &one.id, 2001)).await, SessionAdded::Yes);
}

pub(crate) async fn sessions_are_bounded_and_end_once(store: Store) {
    let tenant = organization(&store).await;
    let sandbox = added(&store, &tenant).await;
    let mut begins = JoinSet::new();
    for uid in 2000..2008 {
        let (store, session) = (store.clone(), session(&tenant, &sandbox.id, uid));
        begins.spawn(async move { begin(&store, &session).await });
    }
    let begun = begins.join_all().await;
    let count = |wanted| begun.iter().filter(|added| **added == wanted).count();
    assert_eq!((count(SessionAdded::Yes), count(SessionAdded::Full)), (3, 5), "{begun:?}");
    let nowhere = session(&tenant, &SandboxId::from_random(distinct_bytes()), 2000);
    assert_eq!(begin(&store, &nowhere).await, SessionAdded::Gone);
}

/// L-01: what was written is what is read, in the order in which it was written.
pub(crate) async fn a_log_is_paged_followed_and_pruned(store: Store) {
    let (tenant, other) = (organization(&store).await, organization(&store).await);
    let (mine, theirs) = (added(&store, &tenant).await, added(&store, &other).await);
    let entry = |sandbox: &SandboxId, nth: i64| EgressLine {
        time: Timestamp(NOW.0 + nth),
        sandbox: sandbox.clone(),
        session: (nth == 1).then(|| SessionId::from_random(distinct_bytes())),
        uid: (nth != 2).then_some(1000),
        front: "proxy".to_owned(),
        destination: "good.test:443".to_owned(),
        rule: "allow good.test".to_owned(),
        outcome: "allowed".to_owned(),
        bytes_out: 1,
        bytes_in: u64::MAX >> 1,
        duration_ms: 7,
        dropped: 0,
    };
    let before = store.last_egress().await.expect("read");
    let lines: Vec<_> = (0..5).map(|nth| entry(&mine.id, nth)).collect();
    let unknown = entry(&SandboxId::from_random(distinct_bytes()), 9);
    store.append_egress(&lines).await.expect("written");
    store.append_egress(&[entry(&theirs.id, 0), unknown]).await.expect("written");

    let mut filter =
        EgressFilter { organization: tenant.organization.clone(), sandbox: None, limit: 2 };
    let followed = store.egress_lines_after(&filter, before).await.expect("read");
    assert_eq!(followed.iter().map(|(_, line)| line).collect::<Vec<_>>(), [&lines[0], &lines[1]]);
    let page = store.egress_lines(&filter, None).await.expect("read");
    assert_eq!(page.iter().map(|(_, line)| line).collect::<Vec<_>>(), [&lines[4], &lines[3]]);
    let next = store.egress_lines(&filter, Some(page[1].0)).await.expect("read");
    assert_eq!(next.iter().map(|(_, line)| line).collect::<Vec<_>>(), [&lines[2], &lines[1]]);
    filter.sandbox = Some(theirs.id.clone());
    assert!(store.egress_lines(&filter, None).await.expect("read").is_empty());

    filter = EgressFilter { sandbox: Some(mine.id.clone()), limit: 9, ..filter };
    store.prune_egress(Timestamp(NOW.0 + 2), 1000).await.expect("pruned");
    assert_eq!(store.egress_lines(&filter, None).await.expect("read").len(), 3);
    store.prune_egress(Timestamp(0), 2).await.expect("pruned");
    assert_eq!(store.egress_lines(&filter, None).await.expect("read").len(), 2);
}
