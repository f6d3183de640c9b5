//! Templates and the steps on the way to them.

use domain::{
    id::{OrganizationId, SandboxId, SnapshotId, TemplateId},
    image::digest::Digest,
    region::Region,
    size::{Resources, SizeClass},
    template::TemplateName,
    time::Timestamp,
};
use store::{
    Store,
    templates::{Template, TemplateStep},
};
use testkit::fixtures::distinct_bytes;

use crate::fixture::{NOW, Tenant, line, organization};

fn snapshot() -> SnapshotId {
    SnapshotId::from_random(distinct_bytes())
}

fn name(text: &str) -> TemplateName {
    text.parse().expect("a name")
}

fn template(tenant: &Tenant, called: &str) -> Template {
    Template {
        id: TemplateId::from_random(distinct_bytes()),
        organization: tenant.organization.clone(),
        owner: tenant.user.clone(),
        region: Region::local(),
        name: name(called),
        base: "base".to_owned(),
        key: "key".to_owned(),
        snapshot: snapshot(),
        image: Digest::of(b"manifest"),
        image_name: "base".parse().expect("a name"),
        size: Some(SizeClass::Small),
        resources: Resources::of(SizeClass::Small),
        workdir: "/".to_owned(),
        account: "root".to_owned(),
        created: NOW,
        built: NOW,
    }
}

async fn bind(store: &Store, template: &Template) -> Option<SnapshotId> {
    let line = line(&template.organization, "template.built", Some(template.id.as_str()));
    store.bind_template(template, &line).await.expect("bound")
}

async fn step(
    store: &Store,
    tenant: &Tenant,
    key: &str,
    of: &str,
    at: i64,
    most: u32,
) -> SnapshotId {
    let step = TemplateStep {
        organization: tenant.organization.clone(),
        key: key.to_owned(),
        snapshot: snapshot(),
        template: name(of),
    };
    store.add_template_step(&step, Timestamp(at), most).await.expect("added");
    step.snapshot
}

async fn found(store: &Store, organization: &OrganizationId, key: &str) -> Option<SnapshotId> {
    let used = store.use_template_step(organization, key, &name("web"), Timestamp(100)).await;
    used.expect("the store answers")
}

pub(crate) async fn a_name_is_bound_to_the_last_build(store: Store) {
    let tenant = organization(&store).await;
    let first = template(&tenant, "web");
    assert_eq!(bind(&store, &first).await, None);
    let read = store.template(&tenant.organization, &first.name).await.expect("read");
    assert_eq!(read.as_ref(), Some(&first));
    let later = Timestamp(NOW.0 + 5);
    let second = Template { created: later, built: later, ..template(&tenant, "web") };
    assert_eq!(bind(&store, &second).await, Some(first.snapshot));
    let read = store.template(&tenant.organization, &first.name).await.expect("read");
    assert_eq!(read, Some(Template { created: NOW, ..second }));
    assert_eq!(store.template_images().await.expect("read").len(), 1);
}

pub(crate) async fn a_template_of_another_organisation_is_unknown(store: Store) {
    let (ours, theirs) = (organization(&store).await, organization(&store).await);
    bind(&store, &template(&ours, "web")).await;
    let key = step(&store, &ours, "k", "web", 1, 9).await;
    assert_eq!(store.template(&theirs.organization, &name("web")).await.expect("read"), None);
    assert!(store.templates(&theirs.organization).await.expect("read").is_empty());
    assert_eq!(found(&store, &theirs.organization, "k").await, None);
    let line = line(&theirs.organization, "template.delete", None);
    let gone = store.remove_template(&theirs.organization, &name("web"), &line).await;
    assert!(gone.expect("the store answers").is_empty());
    assert_eq!(found(&store, &ours.organization, "k").await, Some(key));
}

pub(crate) async fn steps_go_with_the_template_that_used_them_last(store: Store) {
    let tenant = organization(&store).await;
    let web = template(&tenant, "web");
    bind(&store, &web).await;
    bind(&store, &template(&tenant, "other")).await;
    let shared = step(&store, &tenant, "a", "other", 1, 9).await;
    let mine = step(&store, &tenant, "b", "web", 2, 9).await;
    let theirs = step(&store, &tenant, "c", "other", 3, 9).await;
    // Used by `web` from now on.
    assert_eq!(found(&store, &tenant.organization, "a").await, Some(shared.clone()));
    let line = line(&tenant.organization, "template.delete", Some("web"));
    let gone = store.remove_template(&tenant.organization, &web.name, &line).await;
    let mut gone = gone.expect("removed");
    gone.sort();
    let mut expected = vec![web.snapshot, shared, mine];
    expected.sort();
    assert_eq!(gone, expected);
    assert_eq!(found(&store, &tenant.organization, "c").await, Some(theirs));
    assert_eq!(store.template_snapshots().await.expect("read").len(), 2);
}

pub(crate) async fn the_steps_used_last_are_kept(store: Store) {
    let tenant = organization(&store).await;
    for at in 1..=3_i64 {
        step(&store, &tenant, &format!("k{at}"), "web", at, 9).await;
    }
    found(&store, &tenant.organization, "k1").await;
    let new = TemplateStep {
        organization: tenant.organization.clone(),
        key: "k4".to_owned(),
        snapshot: snapshot(),
        template: name("web"),
    };
    let gone = store.add_template_step(&new, Timestamp(200), 2).await.expect("added");
    assert_eq!(gone.len(), 2);
    assert!(found(&store, &tenant.organization, "k1").await.is_some());
    assert!(found(&store, &tenant.organization, "k2").await.is_none());
    assert!(found(&store, &tenant.organization, "k3").await.is_none());
    store.remove_template_step(&tenant.organization, "k1").await.expect("removed");
    assert!(found(&store, &tenant.organization, "k1").await.is_none());
}

pub(crate) async fn a_build_is_on_record_while_it_lasts(store: Store) {
    let tenant = organization(&store).await;
    let id = SandboxId::from_random(distinct_bytes());
    store.add_template_build(&id, &tenant.organization, NOW).await.expect("added");
    assert_eq!(store.template_builds().await.expect("read"), std::slice::from_ref(&id));
    store.remove_template_build(&id).await.expect("removed");
    assert!(store.template_builds().await.expect("read").is_empty());
}
