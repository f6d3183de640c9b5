//! Tokens, and the first of them.

use std::io;

use control::{
    bootstrap::{Bootstrapped, bootstrap},
    error::Error,
    tokens::{NewToken, TokenName},
};
use domain::{id::TokenId, region::Region, scope::Scope, token::Token};
use store::Store;
use testkit::fixtures::sources;

use crate::fixture::Installation;

#[tokio::test]
async fn the_first_start_makes_two_tokens_and_the_second_none() {
    let it = Installation::new().await;
    assert!(it.administrator.may(Scope::Admin));
    assert!(it.caller.may(Scope::SandboxesRead) && it.caller.may(Scope::SandboxesWrite));
    assert!(!it.caller.may(Scope::Admin));
    let region = Region::local();
    let again = bootstrap(&it.store, &region, &sources(), |_| panic!("there are some")).await;
    assert_eq!(again.expect("nothing to do"), Bootstrapped::Before);
    let names: Vec<_> = it.lines(&it.caller).await.into_iter().map(|line| line.action).collect();
    assert_eq!(names, ["installation.create", "token.mint", "token.mint"]);
}

#[tokio::test]
async fn tokens_that_cannot_be_kept_are_not_made() {
    let store = Store::open("sqlite::memory:").await.expect("it opens");
    let region = Region::local();
    let mut lost = None;
    let failed = bootstrap(&store, &region, &sources(), |tokens| {
        lost = Some(tokens.clone());
        Err(io::Error::other("the disk is full"))
    })
    .await;
    assert!(failed.is_err());
    let lost = lost.expect("they were shown");
    assert!(store.token_by_hash(&lost.admin.hash()).await.expect("read").is_none());
    let made = bootstrap(&store, &region, &sources(), |_| Ok(())).await;
    assert_eq!(made.expect("the first start"), Bootstrapped::Now);
}

/// S45, S68, U14
#[tokio::test]
async fn a_minted_token_opens_until_it_is_revoked() {
    let it = Installation::new().await;
    let new = NewToken {
        scopes: "sandboxes:read".parse().expect("scopes"),
        name: TokenName::new("ci".to_owned()).expect("a name"),
    };
    let minted = it.control.mint_token(&it.administrator, new).await.expect("minted");
    assert!(minted.token.expose().starts_with("coldframe_"));
    let caller = it.control.authenticate(&minted.token).await.expect("it opens");
    assert_eq!(caller.token, minted.record.id);
    assert_eq!(caller.organization, it.administrator.organization);
    assert!(caller.may(Scope::SandboxesRead) && !caller.may(Scope::SandboxesWrite));
    let listed = it.control.list_tokens(&it.administrator).await.expect("a list");
    assert!(listed.contains(&minted.record));

    for _ in 0..2 {
        let id = &minted.record.id;
        it.control.revoke_token(&it.administrator, id).await.expect("revoked");
    }
    let refused = it.control.authenticate(&minted.token).await;
    assert!(matches!(refused, Err(Error::Unauthenticated)));
    let refused = it.control.authenticate(&Token::from_random([8; 32])).await;
    assert!(matches!(refused, Err(Error::Unauthenticated)));
    let unknown = TokenId::from_random([8; 16]);
    let error = it.control.revoke_token(&it.administrator, &unknown).await.expect_err("unknown");
    assert_eq!(error.code(), "not_found");
}

/// The text of a token is on no disk: only its hash is.
#[tokio::test]
async fn a_token_is_not_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = crate::fixture::sqlite_url(folder.path());
    let it = Installation::with(control::settings::TierLimits::default(), &url).await;
    let scopes = it.caller.scopes.clone();
    let new = NewToken { scopes, name: TokenName::default() };
    let minted = it.control.mint_token(&it.administrator, new).await.expect("minted");
    let text = minted.token.expose().as_bytes();
    for entry in std::fs::read_dir(folder.path()).expect("the folder") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        assert!(!bytes.windows(text.len()).any(|window| window == text));
    }
}
