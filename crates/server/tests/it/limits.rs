//! What an organisation may have.

use testkit::app::App;

use crate::sandboxes::base;

/// S81, S91
#[tokio::test]
async fn limits_say_what_is_allowed_and_what_is_in_use() {
    let app = App::start().await;
    let client = app.sandboxes();
    let limits = client.limits().await.unwrap();
    assert_eq!((limits.timeout_seconds.min, limits.timeout_seconds.max), (10, 3600));
    assert_eq!(limits.networks, ["off", "brokered", "restricted", "mediated"]);
    assert_eq!(limits.sandboxes_in_use, 0);
    assert_eq!((limits.regions[0].as_str(), limits.sizes[0].name.as_str()), ("local", "small"));
    client.create_sandbox(&base()).await.unwrap();
    assert_eq!(client.limits().await.unwrap().sandboxes_in_use, 1);
    app.stop().await;
}
