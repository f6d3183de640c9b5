//! Rows that the cases begin with.

use std::{collections::BTreeMap, time::Duration};

use domain::{
    id::{Alias, AuditId, OrganizationId, SandboxId, UserId},
    image::digest::Digest,
    mode::EgressMode,
    phase::Phase,
    region::Region,
    size::{Resources, SizeClass},
    time::Timestamp,
};
use serde_json::Map;
use store::{
    Store,
    audit::{AuditLine, Outcome},
    egress::Egress,
    organizations::Organization,
    sandboxes::{Added, Fingerprint, Sandbox, rest::Rest},
    users::User,
};
use testkit::fixtures::distinct_bytes;

/// When every fixture was made.
pub(crate) const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// An organisation with one user.
pub(crate) struct Tenant {
    pub(crate) organization: OrganizationId,
    pub(crate) user: UserId,
}

pub(crate) async fn organization(store: &Store) -> Tenant {
    let organization = Organization {
        id: OrganizationId::from_random(distinct_bytes()),
        name: "default".to_owned(),
        region: Region::local(),
        created: NOW,
    };
    let user = User {
        id: UserId::from_random(distinct_bytes()),
        organization: organization.id.clone(),
        name: "admin".to_owned(),
        region: Region::local(),
        created: NOW,
    };
    store.add_organization(&organization).await.expect("added");
    store.add_user(&user).await.expect("added");
    assert_eq!(
        store.organization(&organization.id).await.expect("read").as_ref(),
        Some(&organization)
    );
    assert_eq!(store.user(&user.id).await.expect("read").as_ref(), Some(&user));
    Tenant { organization: organization.id, user: user.id }
}

pub(crate) fn sandbox(tenant: &Tenant) -> Sandbox {
    Sandbox {
        id: SandboxId::from_random(distinct_bytes()),
        alias: Alias::from_random(distinct_bytes()),
        organization: tenant.organization.clone(),
        owner: tenant.user.clone(),
        region: Region::local(),
        template: "base".parse().expect("a name"),
        image: Digest::of(b"manifest"),
        size: Some(SizeClass::Medium),
        resources: Resources::of(SizeClass::Medium),
        network: EgressMode::Off,
        egress: Egress::default(),
        phase: Phase::Provisioning,
        intent: None,
        ending: None,
        metadata: BTreeMap::from([("team/name".to_owned(), "é \"quoted\" ☃".to_owned())]),
        timeout: Duration::from_secs(300),
        created: NOW,
        started: None,
        ended: None,
        expires: None,
        rest: Rest::default(),
        parent: None,
        generation: 0,
    }
}

pub(crate) fn line(organization: &OrganizationId, action: &str, object: Option<&str>) -> AuditLine {
    AuditLine {
        id: AuditId::from_random(distinct_bytes()),
        time: NOW,
        organization: organization.clone(),
        user: None,
        token: None,
        action: action.to_owned(),
        object: object.map(str::to_owned),
        outcome: Outcome::Allowed,
        detail: Map::new(),
    }
}

pub(crate) fn unkeyed() -> Fingerprint {
    Fingerprint { key: None, request: "request".to_owned() }
}

pub(crate) async fn add(
    store: &Store,
    sandbox: &Sandbox,
    fingerprint: &Fingerprint,
    most: u32,
) -> Added {
    let line = line(&sandbox.organization, "sandbox.create", Some(sandbox.id.as_str()));
    store.add_sandbox(sandbox, fingerprint, most, &line).await.expect("the store answers")
}

pub(crate) async fn added(store: &Store, tenant: &Tenant) -> Sandbox {
    let sandbox = sandbox(tenant);
    assert_eq!(add(store, &sandbox, &unkeyed(), u32::MAX).await, Added::New);
    sandbox
}
