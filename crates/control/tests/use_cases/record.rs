//! One call, one line; and nothing without one.

use control::{
    audit::{AuditQuery, Outcome},
    guest::GuestCall,
    sandboxes::{ListSandboxes, request::Timeout},
    tokens::{NewToken, TokenName},
};
use sandbox::backend::Backend as _;

use crate::fixture::{Installation, everything, request};

/// How many lines of callers there are; what drivers observe is not counted.
async fn asked(it: &Installation) -> usize {
    let lines = it.lines(&it.caller).await;
    lines.iter().filter(|line| line.outcome != Outcome::Observed).count()
}

macro_rules! one_line {
    ($it:expr, $call:expr) => {{
        let before = asked(&$it).await;
        let value = $call.await.expect(stringify!($call));
        assert_eq!(asked(&$it).await, before + 1, "{}", stringify!($call));
        value
    }};
}

/// S41
#[tokio::test]
async fn every_use_case_writes_one_line() {
    let it = Installation::new().await;
    let (control, caller, administrator) = (&it.control, &it.caller, &it.administrator);
    let sandbox = one_line!(it, control.create_sandbox(caller, request()));
    let id = &sandbox.id;
    one_line!(it, control.get_sandbox(caller, id));
    one_line!(it, control.list_sandboxes(caller, ListSandboxes::default()));
    one_line!(it, control.set_timeout(caller, id, Timeout::default()));
    one_line!(it, control.console(caller, id));
    one_line!(it, control.open_guest(caller, id, &GuestCall::FileRead { path: "/a".to_owned() }));
    one_line!(it, control.limits(caller));
    one_line!(it, control.list_images(caller));
    one_line!(it, control.get_image(caller, &"base".parse().expect("a name")));
    let of = AuditQuery { sandbox: Some(id.clone()), ..AuditQuery::default() };
    one_line!(it, control.list_audit(caller, of));
    one_line!(it, control.list_audit(administrator, everything()));
    one_line!(it, control.terminate_sandbox(caller, id));
    one_line!(it, control.list_tokens(administrator));
    let new = NewToken { scopes: caller.scopes.clone(), name: TokenName::default() };
    let minted = one_line!(it, control.mint_token(administrator, new));
    one_line!(it, control.revoke_token(administrator, &minted.record.id));
}

/// U18: a database that is gone stops everything before it happens.
#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    it.store.close().await;
    let error = it.control.create_sandbox(&it.caller, request()).await.expect_err("refused");
    assert_eq!(error.code(), "unavailable");
    let error = it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect_err("refused");
    assert_eq!(error.code(), "unavailable");
    let call = GuestCall::ProcessStart { program: "id".to_owned(), arguments: 0 };
    let opened = it.control.open_guest(&it.caller, &sandbox.id, &call).await;
    assert_eq!(opened.map(drop).expect_err("refused").code(), "unavailable");
    assert_eq!(it.backend.list().await.expect("a list"), [sandbox.id]);
    assert_eq!(it.control.ready().await.expect_err("not ready").code(), "unavailable");
}
