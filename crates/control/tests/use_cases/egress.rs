//! What sandboxes may reach, their sessions, and the gateway's log.

use std::time::Duration;

use control::{
    egress::{EgressQuery, Explain, ExplainRules, Network, StoreJournal, StoreRules},
    error::Error,
    page::Limit,
    sandboxes::{NewSandbox, Sandbox},
    sessions::NewSession,
};
use domain::{
    id::SandboxId,
    mode::EgressMode::{self, Brokered, Mediated, Off, Open, Restricted},
    time::Timestamp,
};
use gateway::{
    code::Code,
    decide::{Front, identify},
    journal::{Journal, Record},
};

use crate::fixture::{Installation, request, scoped};

pub(crate) fn network(mode: EgressMode, allow: Option<&[&str]>) -> Network {
    let allow = allow.map(|list| list.iter().map(|item| (*item).to_owned()).collect());
    Network { mode, allow }
}

async fn made(it: &Installation, network: Network) -> Sandbox {
    let new = NewSandbox { network, ..request() };
    it.control.create_sandbox(&it.caller, new).await.expect("it runs")
}

async fn set(it: &Installation, id: &SandboxId, network: Network) -> Result<Sandbox, Error> {
    it.control.set_egress(&it.caller, id, network).await
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    result.expect_err("refused").code()
}

/// S15, S19, S20, W-01: what was asked for is on record, and the guest and the
/// gateway are told.
#[tokio::test]
async fn a_sandbox_gets_the_network_it_asked_for() {
    let it = Installation::new().await;
    let curated = made(&it, network(Restricted, None)).await;
    assert!(curated.egress.allow.contains(&"preset:packages".to_owned()));
    let own = made(&it, network(Restricted, Some(&["Good.test.", "*.wide.test:8443"]))).await;
    let rules = it.gateway.rules(&own.id).expect("the gateway was told");
    let allow: Vec<_> = rules.allow.iter().map(ToString::to_string).collect();
    assert_eq!(allow, ["good.test", "*.wide.test:8443"]);
    assert_eq!(rules.mode, Restricted);
    let none = made(&it, network(Restricted, Some(&[]))).await;
    assert!(it.gateway.rules(&none.id).expect("told").allow.is_empty());
    let guest = it.backend.fake.guest(&own.id).expect("a guest");
    let inside = guest.network().expect("the guest was told");
    assert!(inside.environment.iter().any(|(name, _)| name == "HTTPS_PROXY"));
    let off = made(&it, Network::default()).await;
    assert!(it.backend.fake.guest(&off.id).expect("a guest").network().is_none());
}

/// U3, U4, S24: narrowing is the owner's, widening the operator's.
#[tokio::test]
async fn a_mode_is_narrowed_freely_and_widened_within_policy() {
    let it = Installation::new().await;
    let id = made(&it, network(Mediated, None)).await.id;
    assert_eq!(code(set(&it, &id, network(Open, None)).await), "mode_unavailable");
    let listed = network(Restricted, Some(&["good.test"]));
    let row = set(&it, &id, listed.clone()).await.expect("narrowed");
    assert_eq!((row.network, row.egress.generation), (Restricted, 2));
    let rules = it.gateway.rules(&id).expect("the gateway was told");
    assert_eq!((rules.mode, rules.generation, rules.allow.len()), (Restricted, 2, 1));
    set(&it, &id, network(Mediated, None)).await.expect("widened within policy");
    for mode in [Brokered, Off] {
        set(&it, &id, network(mode, None)).await.expect("narrowed");
        let guest = it.backend.fake.guest(&id).expect("a guest");
        let expected = sandbox::network::network(mode);
        assert_eq!(guest.network(), Some(expected), "{mode:?}");
    }
    // A list is for the mode that has one.
    let odd = set(&it, &id, network(Mediated, Some(&["good.test"]))).await;
    assert_eq!(code(odd), "invalid_request");
    let wide = set(&it, &id, network(Restricted, Some(&["*.com"]))).await;
    assert_eq!(code(wide), "invalid_request");
    // Each change is on record, refusals included.
    let lines = it.lines(&it.caller).await;
    let sets: Vec<_> = lines.iter().filter(|line| line.action == "egress.set").collect();
    assert_eq!(sets.len(), 7);
    assert_eq!(sets[1].detail["network"], "restricted");
    assert_eq!(sets[1].detail["from"], "mediated");
    assert_eq!(sets[1].detail["generation"], 2);
}

/// U18, S10: without somebody to judge, nothing is let out.
#[tokio::test]
async fn without_a_gateway_nothing_but_off_is_possible() {
    let it = Installation::new().await;
    let id = made(&it, network(Restricted, None)).await.id;
    it.gateway.set_down(true);
    let new = NewSandbox { network: network(Restricted, None), ..request() };
    let refused = it.control.create_sandbox(&it.caller, new).await;
    assert_eq!(code(refused), "gateway_unavailable");
    assert_eq!(code(set(&it, &id, network(Mediated, None)).await), "gateway_unavailable");
    // Taking away needs nobody.
    set(&it, &id, network(Off, None)).await.expect("narrowed");
    made(&it, Network::default()).await;
}

/// Two changes at once: each is whole, and the last one is what holds.
#[tokio::test]
async fn changes_at_once_are_not_mixed() {
    let it = Installation::new().await;
    let id = made(&it, network(Mediated, None)).await.id;
    let mut changes = tokio::task::JoinSet::new();
    for nth in 0..4 {
        let (control, caller, id) = (it.control.clone(), it.caller.clone(), id.clone());
        let host = format!("h{nth}.test");
        changes.spawn(async move {
            let wanted = network(Restricted, Some(&[&host]));
            control.set_egress(&caller, &id, wanted).await.map(drop)
        });
    }
    let outcomes = changes.join_all().await;
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(done >= 1, "{outcomes:?}");
    let row = it.store.sandbox(&id).await.expect("read").expect("it is there");
    assert_eq!(row.egress.generation, 1 + done as i64);
    let rules = it.gateway.rules(&id).expect("told");
    assert_eq!(rules.allow, row.egress.entries);
    assert_eq!(rules.allow.len(), 1);
}

/// W28, W29, U33, U36: a session is an account, until it ends.
#[tokio::test]
async fn a_session_is_an_account_until_it_ends() {
    let it = Installation::new().await;
    let id = made(&it, network(Restricted, None)).await.id;
    let new = |uid| NewSession { uid, attended: false };
    let session = it.control.create_session(&it.caller, &id, new(2000)).await.expect("made");
    let rules = it.gateway.rules(&id).expect("told");
    assert_eq!(identify(&rules, Some(2000)).unwrap().session, Some(session.id.clone()));
    assert_eq!(identify(&rules, Some(1000)).unwrap().session, None);
    assert!(identify(&rules, None).is_err());
    let again = it.control.create_session(&it.caller, &id, new(2000)).await;
    assert_eq!(code(again), "session_exists");
    for uid in [0, 991, 65_534, u32::MAX] {
        let refused = it.control.create_session(&it.caller, &id, new(uid)).await;
        assert_eq!(code(refused), "invalid_request");
    }
    let stranger = it.stranger().await;
    assert_eq!(code(it.control.list_sessions(&stranger, &id).await), "not_found");
    assert_eq!(code(it.control.end_session(&stranger, &id, &session.id).await), "not_found");
    let listed = it.control.list_sessions(&it.caller, &id).await.expect("listed");
    assert_eq!(listed, std::slice::from_ref(&session));
    it.control.end_session(&it.caller, &id, &session.id).await.expect("ended");
    assert_eq!(code(it.control.end_session(&it.caller, &id, &session.id).await), "not_found");
    assert!(it.gateway.rules(&id).expect("told").sessions.is_empty());
    // What the gateway asks for is what it was handed.
    let asked = StoreRules::new(it.store.clone(), Default::default());
    assert_eq!(asked.of(&id).await.expect("read"), it.gateway.rules(&id));
    it.control.terminate_sandbox(&it.caller, &id).await.expect("ended");
    assert_eq!(asked.of(&id).await.expect("read"), None);
    assert_eq!(it.gateway.rules(&id), None);
}

fn record(id: &SandboxId, nth: i64) -> Record {
    Record {
        time: Timestamp(nth),
        sandbox: id.clone(),
        session: None,
        uid: Some(1000),
        front: Front::Captured,
        destination: "a\nb".into(),
        rule: "allow".into(),
        outcome: Code::PolicyDenied.as_str().into(),
        bytes_out: 0,
        bytes_in: 0,
        duration_ms: 0,
        dropped: 0,
    }
}

/// TM12, L-01: every record is a line, in order, and a log is followed.
#[tokio::test]
async fn what_the_gateway_decides_is_on_record() {
    let it = Installation::new().await;
    let id = made(&it, Network::default()).await.id;
    let keep = Duration::from_secs(3600);
    let (journal, writer) = StoreJournal::new(it.store.clone(), || Timestamp(50), keep);
    let writing = tokio::spawn(writer.run());
    let query = EgressQuery { sandbox: Some(id.clone()), ..EgressQuery::default() };
    let mut follow = it.control.follow_egress(&it.caller, query.clone()).await.expect("followed");
    for nth in 0..300 {
        journal.record(record(&id, nth));
    }
    for nth in 0..300 {
        let line = follow.next().await.expect("a line");
        assert_eq!((line.time, line.destination.as_str()), (Timestamp(nth), "a\\nb"));
    }
    drop(journal);
    writing.await.expect("it ends with its journal");
    let limit = Limit::new(200).expect("a limit");
    let query = EgressQuery { limit, ..query };
    let page = it.control.list_egress(&it.caller, query.clone()).await.expect("a page");
    assert_eq!((page.items.len(), page.items[0].time), (200, Timestamp(299)));
    let next = EgressQuery { after: page.next, ..query.clone() };
    assert_eq!(it.control.list_egress(&it.caller, next).await.expect("a page").items.len(), 100);
    let stranger = it.stranger().await;
    assert_eq!(code(it.control.list_egress(&stranger, query).await), "not_found");
    let theirs = it.control.list_egress(&stranger, EgressQuery::default()).await;
    assert!(theirs.expect("a page").items.is_empty());
    assert!(it.control.list_egress(&it.administrator, EgressQuery::default()).await.is_ok());
    let writer = scoped(&it.caller, "sandboxes:write");
    let refused = it.control.list_egress(&writer, EgressQuery::default()).await;
    assert_eq!(code(refused), "missing_scope");
}

/// What does not fit is counted, and the count is on record.
#[tokio::test]
async fn what_is_not_written_is_counted() {
    let it = Installation::new().await;
    let id = made(&it, Network::default()).await.id;
    let keep = Duration::from_secs(3600);
    let (journal, writer) = StoreJournal::new(it.store.clone(), || Timestamp(50), keep);
    for nth in 0..5000 {
        journal.record(record(&id, nth));
    }
    let writing = tokio::spawn(writer.run());
    while it.store.last_egress().await.expect("read") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    journal.record(record(&id, 5000));
    drop(journal);
    writing.await.expect("it ends with its journal");
    let filter = store::egress::EgressFilter {
        organization: it.caller.organization.clone(),
        sandbox: Some(id),
        limit: 10_000,
    };
    let lines = it.store.egress_lines(&filter, None).await.expect("read");
    let dropped: u64 = lines.iter().map(|(_, line)| line.dropped).sum();
    assert!(dropped > 0);
    assert_eq!(lines.len() as u64 + dropped, 5001);
}

/// Explaining asks the same function and sends nothing.
#[tokio::test]
async fn an_explanation_is_the_decision() {
    let it = Installation::new().await;
    let id = made(&it, network(Restricted, Some(&["good.test"]))).await.id;
    let explain = |url: &str| {
        let rules = ExplainRules::Sandbox { id: id.clone(), uid: None };
        it.control.explain_egress(&it.caller, Explain { url: url.to_owned(), rules })
    };
    let told = explain("https://good.test/x").await.expect("told");
    assert_eq!(told.rule.as_deref(), Some("allow good.test"));
    let told = explain("https://evil.test/").await.expect("told");
    assert_eq!(told.refusal.map(|refusal| refusal.code), Some(Code::PolicyDenied));
    let new = Explain {
        url: "http://169.254.169.254/".to_owned(),
        rules: ExplainRules::New(network(Mediated, None)),
    };
    let told = it.control.explain_egress(&it.caller, new).await.expect("told");
    assert_eq!(told.refusal.map(|refusal| refusal.code), Some(Code::DestinationBlocked));
    let stranger = it.stranger().await;
    let rules = ExplainRules::Sandbox { id, uid: None };
    let refused = it.control.explain_egress(&stranger, Explain { url: "a.test".into(), rules });
    assert_eq!(code(refused.await), "not_found");
}
