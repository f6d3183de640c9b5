//! Volumes through the typed client.

use api::{
    sandboxes::CreateSandbox,
    volumes::{CreateVolume, Mount},
};
use testkit::app::App;

use crate::sandboxes::{base, code};

fn new(name: &str) -> CreateVolume {
    CreateVolume { name: name.into(), size_mb: Some(16), ..CreateVolume::default() }
}

fn mount(volume: &str) -> Mount {
    Mount { volume: volume.into(), path: None }
}

/// S39, S40, S82, U37: the whole life of a volume over HTTP.
#[tokio::test]
async fn a_volume_is_made_used_kept_and_deleted() {
    let app = App::start().await;
    let client = app.sandboxes();
    let made = client.create_volume(&new("data")).await.unwrap();
    assert_eq!((made.state.as_str(), made.size_mb, made.region.as_str()), ("ready", 16, "local"));
    assert!(made.used_bytes > 0 && made.attachment.is_none());
    assert_eq!(code(client.create_volume(&new("data")).await), "name_taken");

    let create = CreateSandbox { volumes: vec![mount("data")], ..base() };
    let first = client.create_sandbox(&create).await.unwrap();
    let holder = client.volume("data").await.unwrap().attachment.unwrap();
    assert_eq!((holder.sandbox, holder.path.as_str()), (first.id.clone(), "/persist"));
    assert_eq!(code(client.create_sandbox(&create).await), "volume_attached");
    assert_eq!(code(client.delete_volume("data").await), "volume_attached");

    let checkpoint = client.create_checkpoint("data").await.unwrap();
    assert_eq!(checkpoint.state, "ready");
    assert!(checkpoint.data_bytes > 0 && checkpoint.finished_at.is_some());
    client.detach_volume(&first.id, "data").await.unwrap();
    let second = client.create_sandbox(&base()).await.unwrap();
    let attached = client.attach_volume(&second.id, &mount(made.id.as_str())).await.unwrap();
    assert_eq!(attached.attachment.unwrap().sandbox, second.id);

    let copy = CreateVolume {
        name: "copy".into(),
        checkpoint: Some(checkpoint.id.to_string()),
        ..CreateVolume::default()
    };
    let copy = client.create_volume(&copy).await.unwrap();
    assert_eq!((copy.state.as_str(), copy.checkpoint), ("ready", Some(checkpoint.id.clone())));
    let names: Vec<_> =
        client.list_volumes().await.unwrap().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["copy", "data"]);
    assert_eq!(client.list_checkpoints("data").await.unwrap().len(), 1);
    client.delete_checkpoint(&checkpoint.id).await.unwrap();
    assert_eq!(client.list_checkpoints("data").await.unwrap().len(), 0);
    client.terminate(&second.id).await.unwrap();
    client.delete_volume("data").await.unwrap();
    assert_eq!(code(client.volume("data").await), "not_found");
    app.stop().await;
}

/// What cannot be is refused with a code and the name of the field.
#[tokio::test]
async fn a_volume_that_makes_no_sense_is_refused() {
    let app = App::start().await;
    let client = app.sandboxes();
    client.create_volume(&new("data")).await.unwrap();
    let sandbox = client.create_sandbox(&base()).await.unwrap();
    let cases = [
        (CreateVolume { name: "../x".into(), ..new("x") }, "invalid_request"),
        (CreateVolume { size_mb: Some(1), ..new("x") }, "invalid_request"),
        (CreateVolume { size_mb: None, ..new("x") }, "invalid_request"),
        (CreateVolume { size_mb: Some(65), ..new("x") }, "invalid_request"),
        (CreateVolume { region: Some("eu".into()), ..new("x") }, "invalid_request"),
        (CreateVolume { checkpoint: Some("x".into()), ..new("x") }, "invalid_request"),
    ];
    for (create, expected) in cases {
        assert_eq!(code(client.create_volume(&create).await), expected, "{create:?}");
    }
    for path in ["persist", "/etc", "/a/../etc", "/"] {
        let mount = Mount { volume: "data".into(), path: Some(path.into()) };
        assert_eq!(
            code(client.attach_volume(&sandbox.id, &mount).await),
            "invalid_request",
            "{path}"
        );
    }
    assert_eq!(code(client.attach_volume(&sandbox.id, &mount("none")).await), "not_found");
    client.detach_volume(&sandbox.id, "data").await.unwrap();
    app.stop().await;
}
