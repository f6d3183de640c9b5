//! Who sees what.

use control::{
    audit::AuditQuery,
    error::Error,
    sandboxes::{ListSandboxes, request::Timeout},
};
use domain::{id::SandboxId, isolation::IsolationClass};

use crate::fixture::{GatedBackend, Installation, compose, everything, request, scoped};

/// S70, S58, S60: an id of somebody else is an id of nothing, in every use case.
#[tokio::test]
async fn a_foreign_sandbox_is_an_unknown_one() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let stranger = it.stranger().await;
    let unknown = SandboxId::from_random([9; 16]);
    let limit = Timeout::default();
    let mut answers = Vec::new();
    for id in [&sandbox.id, &unknown] {
        let of = AuditQuery { sandbox: Some(id.clone()), ..AuditQuery::default() };
        let control = &it.control;
        answers.push(
            [
                control.get_sandbox(&stranger, id).await.map(drop),
                control.terminate_sandbox(&stranger, id).await,
                control.set_timeout(&stranger, id, limit).await.map(drop),
                control.console(&stranger, id).await.map(drop),
                control.list_audit(&stranger, of).await.map(drop),
            ]
            .map(|answer| format!("{:?}", answer.expect_err("it is not theirs"))),
        );
    }
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0].iter().all(|answer| answer.starts_with("NotFound")), "{answers:?}");
    let page = it.control.list_sandboxes(&stranger, ListSandboxes::default()).await;
    assert!(page.expect("a list").items.is_empty());
    let seen = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("it is untouched");
    assert_eq!(seen, sandbox);
}

/// S45, S46, U14
#[tokio::test]
async fn a_token_does_what_its_scopes_say() {
    let it = Installation::new().await;
    let reader = scoped(&it.caller, "sandboxes:read");
    let writer = scoped(&it.caller, "sandboxes:write");
    let control = &it.control;
    let missing = |error: Error| assert_eq!(error.code(), "missing_scope");
    missing(control.create_sandbox(&reader, request()).await.map(drop).expect_err("refused"));
    let sandbox = control.create_sandbox(&writer, request()).await.expect("it starts");
    missing(control.get_sandbox(&writer, &sandbox.id).await.map(drop).expect_err("refused"));
    missing(control.terminate_sandbox(&reader, &sandbox.id).await.expect_err("refused"));
    missing(control.get_sandbox(&it.administrator, &sandbox.id).await.map(drop).expect_err("no"));
    missing(control.list_audit(&it.caller, everything()).await.map(drop).expect_err("refused"));
    control.get_sandbox(&reader, &sandbox.id).await.expect("a reader reads");
    control.list_audit(&it.administrator, everything()).await.expect("an administrator reads");
}

/// S41: page by page, newest first, and of one sandbox for whoever reads it.
#[tokio::test]
async fn the_audit_log_is_read_in_pages() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    for _ in 0..5 {
        it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("it is there");
    }
    let limit = control::page::Limit::new(3).expect("a limit");
    let mut query = AuditQuery { sandbox: Some(sandbox.id.clone()), limit, after: None };
    let mut actions = Vec::new();
    for _ in 0..3 {
        let page = it.control.list_audit(&it.caller, query.clone()).await.expect("a page");
        assert!(page.items.len() <= 3);
        actions.extend(page.items.into_iter().map(|line| line.action));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    let mut expected = vec!["audit.read"];
    expected.extend(["sandbox.get"; 5]);
    expected.extend(["sandbox.running", "sandbox.create"]);
    assert_eq!(actions, expected);
    let strange = "1.x".parse().expect("a cursor");
    let query = AuditQuery { after: Some(strange), ..AuditQuery::default() };
    let error = it.control.list_audit(&it.administrator, query).await.expect_err("refused");
    assert_eq!(error.code(), "invalid_request");
}

#[tokio::test]
async fn sandboxes_are_listed_in_pages() {
    let it = Installation::new().await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(it.control.create_sandbox(&it.caller, request()).await.expect("it starts").id);
    }
    let limit = control::page::Limit::new(2).expect("a limit");
    let mut query = ListSandboxes { limit, ..ListSandboxes::default() };
    let mut listed = Vec::new();
    loop {
        let page = it.control.list_sandboxes(&it.caller, query.clone()).await.expect("a page");
        listed.extend(page.items.into_iter().map(|sandbox| sandbox.id));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    listed.sort();
    made.sort();
    assert_eq!(listed, made);
}

/// U2, U18
#[tokio::test]
async fn a_backend_that_separates_less_is_refused() {
    let it = Installation::new().await;
    let backend = GatedBackend::default();
    *backend.isolation.lock().expect("not poisoned") = IsolationClass::Container;
    let refused =
        compose(&it.store, &backend, &it.gateway, control::settings::TierLimits::default());
    assert!(matches!(refused, Err(Error::Isolation { .. })));
}
