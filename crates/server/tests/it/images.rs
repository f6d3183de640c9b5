//! What there is to start from.

use testkit::app::App;

use crate::sandboxes::code;

#[tokio::test]
async fn images_are_listed_and_found_by_name() {
    let app = App::start().await;
    let client = app.sandboxes();
    let listed = client.list_images().await.unwrap();
    assert!(listed[0].ready && listed[0].digest.as_ref().unwrap().starts_with("sha256:"));
    assert_eq!(client.image("base").await.unwrap(), listed[0]);
    for name in ["none", "../base", "", "Base\n"] {
        assert_eq!(code(client.image(name).await), "not_found", "{name:?}");
    }
    app.stop().await;
}
