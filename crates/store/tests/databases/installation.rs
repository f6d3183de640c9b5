//! The first rows.

use domain::{
    id::{OrganizationId, TokenId, UserId},
    region::Region,
    scope::{Scope, Scopes},
    token::Token,
};
use store::{
    Store, bootstrap::FirstRows, error::StoreError, organizations::Organization,
    tokens::TokenRecord, users::User,
};
use testkit::fixtures::distinct_bytes;

use crate::fixture::{NOW, line};

fn rows(token: &Token) -> FirstRows {
    let organization = Organization {
        id: OrganizationId::from_random(distinct_bytes()),
        name: "default".to_owned(),
        region: Region::local(),
        created: NOW,
    };
    let administrator = User {
        id: UserId::from_random(distinct_bytes()),
        organization: organization.id.clone(),
        name: "admin".to_owned(),
        region: Region::local(),
        created: NOW,
    };
    let record = TokenRecord {
        id: TokenId::from_random(distinct_bytes()),
        organization: organization.id.clone(),
        owner: administrator.id.clone(),
        region: Region::local(),
        scopes: Scopes::new(vec![Scope::Admin]).expect("one scope"),
        name: String::new(),
        created: NOW,
        revoked: None,
    };
    let lines = vec![line(&organization.id, "installation.create", None)];
    FirstRows { organization, administrator, tokens: vec![(record, token.hash())], lines }
}

pub(crate) async fn an_installation_is_made_once(store: Store) {
    let (first, second) = (Token::from_random([1; 32]), Token::from_random([2; 32]));
    let region = Region::local();
    let fresh = store.bootstrap(&region, NOW, &rows(&first)).await.expect("it answers");
    fresh.expect("the first start").commit().await.expect("committed");
    let again = store.bootstrap(&region, NOW, &rows(&second)).await.expect("it answers");
    assert!(again.is_none());
    assert!(store.token_by_hash(&first.hash()).await.expect("read").is_some());
    assert!(store.token_by_hash(&second.hash()).await.expect("read").is_none());
    store.ready().await.expect("it answers");
}

pub(crate) async fn nothing_is_made_unless_committed(store: Store) {
    let token = Token::from_random([1; 32]);
    let region = Region::local();
    let fresh = store.bootstrap(&region, NOW, &rows(&token)).await.expect("it answers");
    drop(fresh.expect("the first start"));
    assert!(store.token_by_hash(&token.hash()).await.expect("read").is_none());
    let fresh = store.bootstrap(&region, NOW, &rows(&token)).await.expect("it answers");
    assert!(fresh.is_some(), "still the first start");
}

/// S62, U20
pub(crate) async fn an_installation_stays_in_its_region(store: Store) {
    let token = Token::from_random([1; 32]);
    let fresh = store.bootstrap(&Region::local(), NOW, &rows(&token)).await.expect("it answers");
    fresh.expect("the first start").commit().await.expect("committed");
    let elsewhere: Region = "eu".parse().expect("a region");
    let moved = store.bootstrap(&elsewhere, NOW, &rows(&token)).await;
    assert!(matches!(moved, Err(StoreError::Region { .. })), "{moved:?}");
}
