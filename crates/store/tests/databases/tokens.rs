//! Tokens.

use domain::{
    id::{OrganizationId, TokenId},
    region::Region,
    scope::Scopes,
    time::Timestamp,
    token::Token,
};
use store::{
    Store,
    tokens::{Revoked, TokenRecord},
};
use testkit::fixtures::distinct_bytes;

use crate::fixture::{NOW, Tenant, line, organization};

async fn added(store: &Store, tenant: &Tenant, token: &Token) -> TokenRecord {
    let record = TokenRecord {
        id: TokenId::from_random(distinct_bytes()),
        organization: tenant.organization.clone(),
        owner: tenant.user.clone(),
        region: Region::local(),
        scopes: "sandboxes:read,sandboxes:write".parse::<Scopes>().expect("scopes"),
        name: "ci".to_owned(),
        created: NOW,
        revoked: None,
    };
    let line = line(&tenant.organization, "token.mint", Some(record.id.as_str()));
    store.add_token(&record, &token.hash(), &line).await.expect("added");
    record
}

async fn revoke(store: &Store, organization: &OrganizationId, id: &TokenId) -> Revoked {
    let line = line(organization, "token.revoke", Some(id.as_str()));
    store.revoke_token(organization, id, Timestamp(7), &line).await.expect("the store answers")
}

pub(crate) async fn a_token_is_found_by_its_hash_alone(store: Store) {
    let tenant = organization(&store).await;
    let token = Token::from_random([3; 32]);
    let record = added(&store, &tenant, &token).await;
    assert_eq!(store.token_by_hash(&token.hash()).await.expect("read"), Some(record.clone()));
    assert_eq!(store.tokens(&tenant.organization).await.expect("read"), [record]);
    let other = Token::from_random([4; 32]);
    assert_eq!(store.token_by_hash(&other.hash()).await.expect("read"), None);
}

pub(crate) async fn a_revoked_token_is_revoked_once(store: Store) {
    let tenant = organization(&store).await;
    let token = Token::from_random([3; 32]);
    let record = added(&store, &tenant, &token).await;
    assert_eq!(revoke(&store, &tenant.organization, &record.id).await, Revoked::Now);
    assert_eq!(revoke(&store, &tenant.organization, &record.id).await, Revoked::Before);
    let found = store.token_by_hash(&token.hash()).await.expect("read").expect("it is kept");
    assert_eq!(found.revoked, Some(Timestamp(7)));
}

/// S70
pub(crate) async fn a_token_of_another_organisation_is_unknown(store: Store) {
    let (tenant, other) = (organization(&store).await, organization(&store).await);
    let token = Token::from_random([3; 32]);
    let record = added(&store, &tenant, &token).await;
    assert_eq!(store.token(&other.organization, &record.id).await.expect("read"), None);
    assert_eq!(store.tokens(&other.organization).await.expect("read"), []);
    assert_eq!(revoke(&store, &other.organization, &record.id).await, Revoked::Unknown);
    let found = store.token(&tenant.organization, &record.id).await.expect("read");
    assert_eq!(found, Some(record));
}
