//! Sessions over REST.

use api::sessions::CreateSession;
use testkit::app::App;

use crate::sandboxes::{base, code};

/// W29: a session over REST.
#[tokio::test]
async fn a_session_is_made_listed_and_ended() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let create = CreateSession { uid: 2000, attended: true };
    let session = client.create_session(&id, &create).await.unwrap();
    assert_eq!(client.list_sessions(&id).await.unwrap(), std::slice::from_ref(&session));
    assert_eq!(code(client.create_session(&id, &create).await), "session_exists");
    client.end_session(&id, &session.id).await.unwrap();
    assert_eq!(code(client.end_session(&id, &session.id).await), "not_found");
    // What is no id is as unknown as one of nothing.
    let odd = reqwest::Client::new()
        .delete(app.url(&format!("/v1/sandboxes/{id}/sessions/x%0ay")))
        .bearer_auth(app.tokens.sandboxes.expose());
    assert_eq!(odd.send().await.unwrap().status(), 404);
    app.stop().await;
}
