//! Watching directories.

use guest_protocol::connect::Code;
use serde_json::{Value, json};

use crate::{guest, processes::run};

#[tokio::test]
async fn a_stream_reports_what_an_upload_does_in_its_order() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    run(&host, "mkdir /tmp/w").await;
    let watch = json!({ "path": "/tmp/w", "includeEntry": true });
    let mut messages = host.stream("/filesystem.Filesystem/WatchDir", &[], &watch).await;
    assert!(messages.next().await.unwrap()["start"].is_object());
    let headers = [("content-type", "application/octet-stream")];
    assert_eq!(host.post("/files?path=/tmp/w/f", &headers, "x").await.0, 200);
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let message = messages.next().await.unwrap();
        assert_eq!(message["filesystem"]["name"], "f");
        assert_eq!(message["filesystem"]["entry"]["path"], "/tmp/w/f");
        kinds.push(message["filesystem"]["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds, ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"]);
}

#[tokio::test]
async fn events_wait_until_they_are_fetched() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    run(&host, "mkdir /tmp/w").await;
    let call = |method: &str, message: Value| {
        let (host, method) = (host.clone(), format!("/filesystem.Filesystem/{method}"));
        async move { host.call::<Value>(&method, &message).await }
    };
    let watcher =
        call("CreateWatcher", json!({ "path": "/tmp/w", "recursive": true })).await.unwrap();
    run(&host, "mkdir /tmp/w/d; touch /tmp/w/d/f").await;
    let mut names = Vec::new();
    while !names.contains(&"d/f".to_owned()) {
        let events = call("GetWatcherEvents", watcher.clone()).await.unwrap();
        for event in events["events"].as_array().unwrap() {
            names.push(event["name"].as_str().unwrap().to_owned());
        }
    }
    call("RemoveWatcher", watcher.clone()).await.unwrap();
    assert_eq!(call("GetWatcherEvents", watcher).await.unwrap_err().code, Code::NotFound);
    let missing = call("CreateWatcher", json!({ "path": "/none" })).await;
    assert_eq!(missing.unwrap_err().code, Code::NotFound);
}
