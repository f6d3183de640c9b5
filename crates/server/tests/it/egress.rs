//! The way out over REST: what it may be, what happened, what would.

use api::{
    egress::{ExplainEgress, ListEgress, SetEgress},
    sandboxes::CreateSandbox,
};
use control::egress::EgressLine;
use domain::{id::SandboxId, mode::EgressMode, time::Timestamp};
use http_body_util::BodyExt as _;
use testkit::app::App;

use crate::sandboxes::{base, code};

fn restricted(allow: Option<&[&str]>) -> CreateSandbox {
    let allow = allow.map(|list| list.iter().map(|item| (*item).to_owned()).collect());
    CreateSandbox { network: Some("restricted".into()), allow, ..base() }
}

fn set(network: &str, allow: Option<&[&str]>) -> SetEgress {
    let allow = allow.map(|list| list.iter().map(|item| (*item).to_owned()).collect());
    SetEgress { network: network.into(), allow }
}

/// S15, S19, S20, U3: a network is asked for, shown, narrowed and refused.
#[tokio::test]
async fn a_network_is_asked_for_and_changed() {
    let app = App::start().await;
    let client = app.sandboxes();
    let made = client.create_sandbox(&restricted(Some(&["Good.test."]))).await.unwrap();
    assert_eq!((made.network.as_str(), made.allow), ("restricted", vec!["Good.test.".to_owned()]));
    let id = made.id;
    assert_eq!(app.gateway.rules(&id).unwrap().mode, EgressMode::Restricted);
    let changed = client.set_egress(&id, &set("restricted", Some(&["other.test"]))).await.unwrap();
    assert_eq!(changed.allow, ["other.test"]);
    assert_eq!(code(client.set_egress(&id, &set("open", None)).await), "mode_unavailable");
    assert_eq!(code(client.set_egress(&id, &set("all", None)).await), "invalid_request");
    let wide = set("restricted", Some(&["*.co.uk"]));
    assert_eq!(code(client.set_egress(&id, &wide).await), "invalid_request");
    assert_eq!(client.set_egress(&id, &set("off", None)).await.unwrap().network, "off");
    app.gateway.set_down(true);
    let refused = client.create_sandbox(&restricted(None)).await;
    assert_eq!(code(refused), "gateway_unavailable");
    app.stop().await;
}

/// The same answer for a sandbox and for one that could be, and nothing is sent.
#[tokio::test]
async fn what_would_happen_is_explained() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&restricted(Some(&["good.test"]))).await.unwrap().id;
    let mut asked = ExplainEgress {
        url: "https://GOOD.test/x".into(),
        sandbox: Some(id),
        ..Default::default()
    };
    let told = client.explain_egress(&asked).await.unwrap();
    assert_eq!((told.outcome.as_str(), told.rule.as_str()), ("allowed", "allow good.test"));
    assert_eq!(told.destination.as_deref(), Some("good.test:443"));
    asked.url = "http://good.test/".into();
    let told = client.explain_egress(&asked).await.unwrap();
    assert_eq!(told.outcome, "policy_denied");
    assert!(told.detail.contains("plain http"), "{}", told.detail);
    asked.network = Some("open".into());
    assert_eq!(code(client.explain_egress(&asked).await), "invalid_request");
    asked = ExplainEgress {
        url: "http://[::ffff:a9fe:a9fe]/latest".into(),
        network: Some("mediated".into()),
        ..Default::default()
    };
    let told = client.explain_egress(&asked).await.unwrap();
    assert_eq!(told.outcome, "destination_blocked");
    assert_eq!(told.destination.as_deref(), Some("169.254.169.254:80"));
    app.stop().await;
}

fn line(sandbox: &SandboxId, nth: i64) -> EgressLine {
    EgressLine {
        time: Timestamp(nth),
        sandbox: sandbox.clone(),
        session: None,
        uid: Some(1000),
        front: "proxy".into(),
        destination: "evil.test:443".into(),
        rule: "allow".into(),
        outcome: "policy_denied".into(),
        bytes_out: 1,
        bytes_in: 2,
        duration_ms: 3,
        dropped: 0,
    }
}

/// TM12: the log is read in pages, and followed as it grows; the server's end
/// ends it.
#[tokio::test]
async fn the_log_is_paged_and_followed() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let lines: Vec<_> = (0..3).map(|nth| line(&id, nth)).collect();
    app.store.append_egress(&lines).await.unwrap();
    let mut query = ListEgress { limit: Some(2), ..Default::default() };
    let page = client.list_egress(&query).await.unwrap();
    assert_eq!(page.items.len(), 2);
    assert_eq!(page.items[0].at.0, Timestamp(2));
    query.cursor = page.next_cursor;
    assert_eq!(client.list_egress(&query).await.unwrap().items.len(), 1);
    query.follow = Some(true);
    assert_eq!(code(client.list_egress(&query).await), "invalid_request");

    let query = ListEgress { limit: Some(1), ..Default::default() };
    let mut body = client.follow_egress(&query).await.unwrap().into_body();
    let mut text = Vec::new();
    let mut written = false;
    while text.iter().filter(|byte| **byte == b'\n').count() < 2 {
        let frame = body.frame().await.unwrap().unwrap();
        text.extend_from_slice(&frame.into_data().unwrap());
        if !std::mem::replace(&mut written, true) {
            app.store.append_egress(&[line(&id, 9)]).await.unwrap();
        }
    }
    let text = String::from_utf8(text).unwrap();
    let times: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<api::egress::EgressLine>(line).unwrap().at.0)
        .collect();
    assert_eq!(times, [Timestamp(2), Timestamp(9)]);
    let stranger = app.client(&app.stranger("sandboxes:read").await);
    assert!(stranger.list_egress(&ListEgress::default()).await.unwrap().items.is_empty());
    let foreign = ListEgress { sandbox: Some(id), ..Default::default() };
    assert_eq!(code(stranger.list_egress(&foreign).await), "not_found");
    app.shutdown.cancel();
    while let Some(Ok(_)) = body.frame().await {}
    app.stop().await;
}
