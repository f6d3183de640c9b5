//! The rules of authority, over every action and every set of scopes.

use domain::{
    id::{TokenId, UserId},
    scope::Scopes,
};
use proptest::prelude::*;

use super::*;

fn organization(byte: u8) -> OrganizationId {
    OrganizationId::from_random([byte; 16])
}

fn caller(scopes: &[Scope]) -> Caller {
    Caller {
        organization: organization(1),
        user: UserId::from_random([1; 16]),
        token: TokenId::from_random([1; 16]),
        scopes: Scopes::new(scopes.to_vec()).expect("a set that a token may carry"),
    }
}

fn any_caller() -> impl Strategy<Value = Caller> {
    prop_oneof![
        Just(caller(&[SandboxesRead])),
        Just(caller(&[SandboxesWrite])),
        Just(caller(&[SandboxesRead, SandboxesWrite])),
        Just(caller(&[Admin])),
    ]
}

fn any_action() -> impl Strategy<Value = Action> {
    prop::sample::select(&Action::ALL)
}

/// S46, S57, U14: a sandbox token reaches nothing that an administrator has.
#[test]
fn a_sandbox_token_does_no_administrators_work() {
    let caller = caller(&[SandboxesRead, SandboxesWrite]);
    for action in [Action::TokenMint, Action::TokenList, Action::TokenRevoke, Action::AuditReadAll]
    {
        let denied = may(&caller, action, Owner::Caller).map(|_| ());
        assert_eq!(denied, Err(Denied::Scope(Admin)), "{action:?}");
    }
}

/// U14: and an administrator's token opens no sandbox.
#[test]
fn an_administrators_token_opens_no_sandbox() {
    let own = organization(1);
    for action in Action::ALL.into_iter().filter(|action| !action.scopes().contains(&Admin)) {
        let decided = may(&caller(&[Admin]), action, Owner::Found(Some(&own)));
        assert!(matches!(decided, Err(Denied::Scope(_))), "{action:?}");
    }
}

proptest! {
    /// S45: nothing is allowed without one of the scopes it names, whoever owns it.
    #[test]
    fn nothing_is_allowed_without_its_scope(
        caller in any_caller(), action in any_action(), owner in 0..3_u8,
    ) {
        let organization = organization(owner);
        let owner = if owner == 0 { Owner::Caller } else { Owner::Found(Some(&organization)) };
        if may(&caller, action, owner).is_ok() {
            prop_assert!(action.scopes().iter().any(|scope| caller.may(*scope)));
        }
    }

    /// S70: an id of another organisation and an id of nothing look the same.
    #[test]
    fn foreign_and_unknown_cannot_be_told_apart(
        caller in any_caller(), action in any_action(), owner in 2..255_u8,
    ) {
        let foreign = may(&caller, action, Owner::Found(Some(&organization(owner)))).map(|_| ());
        let unknown = may(&caller, action, Owner::Found(None)).map(|_| ());
        prop_assert!(foreign.is_err());
        prop_assert_eq!(foreign, unknown);
    }

    /// Reading never changes anything: a read-only token does nothing that writes.
    #[test]
    fn a_reader_changes_nothing(action in any_action()) {
        let changes = action.scopes() == [SandboxesWrite];
        let allowed = may(&caller(&[SandboxesRead]), action, Owner::Caller).is_ok();
        prop_assert!(!(changes && allowed));
    }
}
