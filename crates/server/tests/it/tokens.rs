//! Who may call.

use api::tokens::CreateToken;
use testkit::app::App;

use crate::sandboxes::code;

fn with(scopes: &[&str]) -> CreateToken {
    let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    CreateToken { scopes, name: Some("ci".into()) }
}

/// U14: minted by an administrator, shown once, listed without its text, and
/// refused from the moment it is revoked.
#[tokio::test]
async fn a_token_works_until_it_is_revoked() {
    let app = App::start().await;
    let admin = app.client(&app.tokens.admin);
    let made = admin.create_token(&with(&["sandboxes:read"])).await.unwrap();
    let client = app.client(&made.token.parse().unwrap());
    client.limits().await.unwrap();
    let listed = admin.list_tokens().await.unwrap();
    assert!(listed.iter().any(|token| token.id == made.id && token.revoked_at.is_none()));
    assert!(!serde_json::to_string(&listed).unwrap().contains(&made.token));
    admin.revoke_token(&made.id).await.unwrap();
    admin.revoke_token(&made.id).await.unwrap();
    assert_eq!(code(client.limits().await), "unauthenticated");
    app.stop().await;
}

/// U14: no token holds both kinds of scopes, and none is empty.
#[tokio::test]
async fn a_token_that_may_not_be_is_refused() {
    let app = App::start().await;
    let admin = app.client(&app.tokens.admin);
    for scopes in [&["sandboxes:read", "admin"][..], &[], &["everything"]] {
        assert_eq!(code(admin.create_token(&with(scopes)).await), "invalid_request", "{scopes:?}");
    }
    let own = app.sandboxes().create_token(&with(&["sandboxes:read"])).await;
    assert_eq!(code(own), "missing_scope");
    app.stop().await;
}
