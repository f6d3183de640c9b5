//! Templates over HTTP.

use api::templates::{BuildEvent, BuildTemplate};
use testkit::app::App;

use crate::sandboxes::code;

/// A context with a description and one file.
pub(crate) fn context(description: &str) -> Vec<u8> {
    // Two members of a tar file, written by hand: a header of 512 bytes, content
    // filled up to as many, and two empty blocks at the end.
    let mut bytes = Vec::new();
    for (name, content) in [("Template", description), ("a", "1")] {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        header[136..148].copy_from_slice(b"00000000000\0");
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn query(name: &str) -> BuildTemplate {
    BuildTemplate { name: name.to_owned(), ..BuildTemplate::default() }
}

/// U38: a build is followed as it happens; what it made is listed, started from
/// and deleted.
#[tokio::test]
async fn a_template_is_built_used_and_deleted() {
    let app = App::start().await;
    let client = app.sandboxes();
    let description =
        context("FROM base\nENV A=hunter2\nRUN [\"echo\", \"out\"]\nRUN [\"stderr\", \"err\"]");
    let mut build = client.build_template(&query("web"), description).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = build.next().await.unwrap() {
        events.push(event);
    }
    let told = format!("{events:?}");
    assert!(
        told.contains("stdout") && told.contains("stderr") && !told.contains("hunter2"),
        "{told}"
    );
    let steps =
        events.iter().filter(|event| matches!(event, BuildEvent::Step { cached: false, .. }));
    assert_eq!(steps.count(), 3);
    let Some(BuildEvent::Built { template }) = events.last() else { panic!("{told}") };
    assert_eq!(client.list_templates().await.unwrap(), std::slice::from_ref(template));
    assert_eq!(client.template("web").await.unwrap(), *template);

    let create = api::sandboxes::CreateSandbox {
        template: "web".to_owned(),
        ..api::sandboxes::CreateSandbox::default()
    };
    let sandbox = client.create_sandbox(&create).await.unwrap();
    assert_eq!((sandbox.state.as_str(), sandbox.template.as_str()), ("running", "web"));

    client.delete_template("web").await.unwrap();
    assert_eq!(code(client.delete_template("web").await), "not_found");
    assert_eq!(code(client.template("../web").await), "not_found");
    assert!(client.list_templates().await.unwrap().is_empty());
    app.stop().await;
}

/// U38: a mistake is an answer before a build begins, a failure its last event.
#[tokio::test]
async fn what_is_wrong_is_told_where_it_shows() {
    let app = App::start().await;
    let client = app.sandboxes();
    for (name, body) in [
        ("web", context("FROM base\nADD a /")),
        ("web", b"no tar file".to_vec()),
        ("base", context("FROM base")),
        ("Web", context("FROM base")),
    ] {
        let refused = client.build_template(&query(name), body).await;
        assert_eq!(code(refused), "invalid_request", "{name}");
    }
    let mut build = client
        .build_template(&query("web"), context("FROM base\nRUN [\"fail\", \"7\"]"))
        .await
        .unwrap();
    let mut last = None;
    while let Some(event) = build.next().await.unwrap() {
        last = Some(event);
    }
    let Some(BuildEvent::Failed { problem }) = last else { panic!("{last:?}") };
    assert_eq!(problem.code, "build_failed");
    assert!(problem.detail.contains("line 2"), "{}", problem.detail);
    let reader = app.client(&app.token("sandboxes:read").await);
    let refused = reader.build_template(&query("web"), context("FROM base")).await;
    assert_eq!(code(refused), "missing_scope");
    app.stop().await;
}
