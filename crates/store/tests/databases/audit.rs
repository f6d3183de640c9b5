//! The audit log.

use serde_json::json;
use store::{
    Store,
    audit::{AuditFilter, AuditLine},
};

use crate::fixture::{line, organization};

async fn read(store: &Store, filter: &AuditFilter) -> Vec<AuditLine> {
    let lines = store.audit_lines(filter).await.expect("the store answers");
    lines.into_iter().map(|(_, line)| line).collect()
}

/// S41, S44
pub(crate) async fn lines_are_read_newest_first_and_by_object(store: Store) {
    let tenant = organization(&store).await;
    let other = organization(&store).await;
    let mut lines = Vec::new();
    for index in 0..5 {
        let object = format!("object {}", index % 2);
        let mut line = line(&tenant.organization, "sandbox.get", Some(&object));
        line.detail.insert("path".to_owned(), json!("/tmp/\u{0}\n\"☃\""));
        store.append_audit(&line).await.expect("written");
        lines.push(line);
    }
    let foreign = line(&other.organization, "sandbox.get", Some("object 0"));
    store.append_audit(&foreign).await.expect("written");
    lines.reverse();

    let mut filter = AuditFilter {
        organization: tenant.organization.clone(),
        object: None,
        limit: 100,
        before: None,
    };
    assert_eq!(read(&store, &filter).await, lines);

    filter.limit = 2;
    let page = store.audit_lines(&filter).await.expect("the store answers");
    filter.before = page.last().map(|(sequence, _)| *sequence);
    assert_eq!(read(&store, &filter).await, lines[2..4]);

    filter =
        AuditFilter { object: Some("object 1".to_owned()), limit: 100, before: None, ..filter };
    assert_eq!(read(&store, &filter).await, [lines[1].clone(), lines[3].clone()]);
}
