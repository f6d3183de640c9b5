//! Building templates, and what is left of a build.

use control::{
    error::Error,
    templates::{Build, Channel, Event, NewTemplate, Template, context},
};
use domain::{caller::Caller, phase::Phase};
use store::snapshots::Purpose;
use testkit::fake_backend::Call;

use crate::fixture::Installation;

/// A request with one file, `a`, in its context.
fn request(name: &str, description: &str, content: &str) -> NewTemplate {
    let mut builder = tar::Builder::new(tempfile::tempfile().expect("a file"));
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, "a", content.as_bytes()).expect("appended");
    let file = builder.into_inner().expect("a tar file");
    NewTemplate {
        name: name.parse().expect("a name"),
        description: description.to_owned(),
        context: context(file).expect("a context"),
        size: None,
        network: control::egress::Network::default(),
    }
}

/// What a build told, and how it ended.
#[derive(Debug)]
struct Told {
    steps: Vec<bool>,
    output: String,
    end: Result<Box<Template>, Error>,
}

async fn follow(mut build: Build) -> Told {
    let (mut steps, mut output) = (Vec::new(), String::new());
    loop {
        match build.next().await.expect("a last event") {
            Event::Step { cached, .. } => steps.push(cached),
            Event::Output { channel: Channel::Output, text } => output.push_str(&text),
            Event::Output { .. } | Event::Note { .. } => {}
            Event::Built(template) => return Told { steps, output, end: Ok(template) },
            Event::Failed(error) => return Told { steps, output, end: Err(error) },
        }
    }
}

async fn built(site: &Installation, caller: &Caller, name: &str, description: &str) -> Told {
    let request = request(name, description, "1");
    let build = site.control.build_template(caller, request).await.expect("it begins");
    follow(build).await
}

/// No machine, no half snapshot, and no snapshot that nothing refers to.
async fn is_clean(site: &Installation) {
    let live = site.store.live_sandboxes().await.expect("read");
    assert!(live.is_empty(), "{live:?}");
    assert!(site.store.template_builds().await.expect("read").is_empty());
    let referred = site.store.template_snapshots().await.expect("read");
    let all = site.store.all_snapshots().await.expect("read");
    for snapshot in &all {
        assert_eq!(snapshot.purpose, Purpose::Template);
        assert!(referred.contains(&snapshot.id), "{snapshot:?}");
    }
    assert_eq!(all.len(), referred.len());
}

const DESCRIPTION: &str = "FROM base\nRUN [\"echo\", \"one\"]\nENV A=$A\nRUN [\"echo\", \"two\"]";

/// U38: a description is built, and again only from where it changed.
#[tokio::test]
async fn a_build_goes_on_where_the_last_one_agrees() {
    let site = Installation::new().await;
    let first = built(&site, &site.caller, "web", DESCRIPTION).await;
    let template = first.end.expect("it is built");
    assert_eq!((template.base.as_str(), template.name.as_str()), ("base", "web"));
    assert_eq!((first.steps, first.output.as_str()), (vec![false; 3], "one\ntwo\n"));
    is_clean(&site).await;

    let again = built(&site, &site.caller, "web", DESCRIPTION).await;
    assert!(again.steps.is_empty());
    assert_eq!(again.end.expect("the same").id, template.id);

    let changed = DESCRIPTION.replace("two", "three");
    let changed = built(&site, &site.caller, "web", &changed).await;
    assert_eq!((changed.steps, changed.output.as_str()), (vec![true, false, false], "three\n"));
    let newer = changed.end.expect("it is built");
    assert!(newer.id != template.id && newer.snapshot != template.snapshot);
    assert_eq!(newer.created, template.created);
    is_clean(&site).await;

    // Another name goes on there too, and another organisation knows nothing.
    let other = built(&site, &site.caller, "other", DESCRIPTION).await;
    assert_eq!(other.steps, [true, true, true]);
    let stranger = site.stranger().await;
    let theirs = built(&site, &stranger, "web", DESCRIPTION).await;
    assert_eq!(theirs.steps, [false, false, false]);
    assert_ne!(theirs.end.expect("it is built").snapshot, newer.snapshot);
    is_clean(&site).await;
}

/// U38, U40: a sandbox starts from it, in its own organisation alone.
#[tokio::test]
async fn a_sandbox_starts_from_a_template() {
    let site = Installation::new().await;
    let template = built(&site, &site.caller, "web", DESCRIPTION).await.end.expect("built");
    let new = || control::sandboxes::NewSandbox::new("web".parse().expect("a name"));
    let sandbox = site.control.create_sandbox(&site.caller, new()).await.expect("it starts");
    assert_eq!((sandbox.phase, sandbox.parent), (Phase::Running, Some(template.snapshot.clone())));
    assert_eq!(sandbox.template.as_str(), "web");

    let stranger = site.stranger().await;
    let error = site.control.create_sandbox(&stranger, new()).await.expect_err("unknown");
    assert_eq!(error.code(), "invalid_request");
    assert!(site.control.get_template(&stranger, &template.name).await.is_err());
    assert!(site.control.delete_template(&stranger, &template.name).await.is_err());

    // A template on a template.
    let on_it = built(&site, &site.caller, "more", "FROM web\nRUN [\"echo\", \"x\"]").await;
    assert_eq!(on_it.end.expect("it is built").base, "web");

    site.backend.fake.change_machine(Some("QEMU is another one"));
    let error = site.control.create_sandbox(&site.caller, new()).await.expect_err("outdated");
    assert_eq!(error.code(), "template_outdated");
    site.backend.fake.change_machine(None);

    site.control.delete_template(&site.caller, &template.name).await.expect("removed");
    let error = site.control.create_sandbox(&site.caller, new()).await.expect_err("gone");
    assert_eq!(error.code(), "invalid_request");
    assert!(site.store.sandbox(&sandbox.id).await.expect("read").expect("a row").ended.is_none());
}

/// U38: a build that fails leaves nothing but the steps that were done.
#[tokio::test]
async fn a_failed_build_leaves_nothing() {
    let site = Installation::new().await;
    for (description, line, said) in [
        ("FROM nothing", "line 1", "no image"),
        ("FROM base\nRUN [\"fail\", \"3\"]", "line 2", "ended"),
        ("FROM base\nRUN [\"nosuch\"]", "line 2", "not found"),
        ("FROM base\nRUN [\"echo\"]\nCOPY b /", "line 3", "not in the context"),
        ("FROM base\nUSER daemon", "line 2", "root or user"),
        ("FROM docker://hub/a", "line 1", "no image can be made"),
        ("FROM base\nSTART [\"fail\", \"1\"]\nREADY 5s", "not built", "ended"),
    ] {
        let told = built(&site, &site.caller, "web", description).await;
        let error = told.end.expect_err(description);
        assert_eq!(error.code(), "build_failed", "{description}");
        let text = error.to_string();
        assert!(text.contains(line) && text.contains(said), "{description}: {text}");
        is_clean(&site).await;
        assert!(site.control.list_templates(&site.caller).await.expect("read").is_empty());
    }
    site.backend.fake.fail(Call::Capture, Some("no room"));
    let told = built(&site, &site.caller, "web", DESCRIPTION).await;
    assert!(told.end.expect_err("no capture").to_string().contains("captured"));
    is_clean(&site).await;
}

/// U38: a build ends with whoever follows it.
#[tokio::test]
async fn a_build_that_nobody_follows_ends() {
    let site = Installation::new().await;
    let slow = request("web", "FROM base\nRUN [\"sleep\"]", "1");
    let mut build = site.control.build_template(&site.caller, slow).await.expect("it begins");
    assert!(matches!(build.next().await, Some(Event::Step { .. })));
    drop(build);
    while !site.store.template_builds().await.expect("read").is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    is_clean(&site).await;
}

/// U38: what a killed server leaves of a build is removed by the next.
#[tokio::test]
async fn a_build_that_a_restart_cut_short_is_cleared_up() {
    let site = Installation::new().await;
    let slow = request("web", "FROM base\nRUN [\"echo\"]\nRUN [\"sleep\"]", "1");
    let mut build = site.control.build_template(&site.caller, slow).await.expect("it begins");
    while site.store.template_snapshots().await.expect("read").is_empty() {
        assert!(build.next().await.is_some());
    }
    let site = site.restarted().await;
    site.control.recover().await.expect("recovered");
    is_clean(&site).await;
    // The step that was done is known.
    let told = built(&site, &site.caller, "web", "FROM base\nRUN [\"echo\"]").await;
    assert_eq!(told.steps, [true]);
}

/// B15, S92: a build is judged, counted and on record, without any value.
#[tokio::test]
async fn a_build_is_judged_and_on_record() {
    let site = Installation::new().await;
    let judged = |name: &str, description: &str| {
        let request = request(name, description, "1");
        let (control, caller) = (site.control.clone(), site.caller.clone());
        async move { control.build_template(&caller, request).await.map(drop) }
    };
    for (name, description, field) in [
        ("base", DESCRIPTION, "name"),
        ("oci-abc", DESCRIPTION, "name"),
        ("web", "RUN x", "description"),
    ] {
        let error = judged(name, description).await.expect_err(name).to_string();
        assert!(error.starts_with(field), "{error}");
    }
    let error = site.control.build_template(&site.administrator, request("web", DESCRIPTION, "1"));
    assert_eq!(error.await.expect_err("no scope").code(), "missing_scope");
    let secret = "FROM base\nENV TOKEN=hunter2\nRUN [\"echo\"]";
    built(&site, &site.caller, "web", secret).await.end.expect("built");
    let lines = format!("{:?}", site.lines(&site.caller).await);
    assert!(lines.contains("template.build") && !lines.contains("hunter2"), "{lines}");
}
