//! How a repeated request is recognised.
//!
//! Two hashes: one of the caller and the key they chose, one of what they asked
//! for. Values of the environment are in neither. They are often short, and a
//! hash of something short can be turned back (S28).

use domain::{caller::Caller, id::SnapshotId, image::digest::Digest};
use store::sandboxes::{Fingerprint, Sandbox};

use crate::sandboxes::NewSandbox;

/// The fingerprint of a request and of the row it would become.
pub(crate) fn fingerprint(caller: &Caller, new: &NewSandbox, row: &Sandbox) -> Fingerprint {
    let key = new
        .idempotency_key
        .as_ref()
        .map(|key| hash(&[caller.organization.as_str(), caller.user.as_str(), key.as_str()]));
    let resources = row.resources;
    let numbers = format!(
        "{} {} {} {}",
        resources.cpus,
        resources.memory_mib,
        row.timeout.as_millis(),
        row.network.as_str()
    );
    let mut parts = vec![row.template.as_str(), row.region.as_str(), &numbers];
    for (key, value) in &row.metadata {
        parts.extend([key.as_str(), value.as_str()]);
    }
    parts.push("allow");
    parts.extend(row.egress.allow.iter().map(String::as_str));
    let mounts: Vec<_> = new.volumes.iter().map(|mount| format!("{mount:?}")).collect();
    if !mounts.is_empty() {
        parts.push("volumes");
        parts.extend(mounts.iter().map(String::as_str));
    }
    let idle = format!("{:?} {}", row.rest.idle, row.rest.auto_resume);
    parts.extend([row.rest.on_timeout.as_str(), &idle]);
    parts.extend(row.parent.as_ref().map(SnapshotId::as_str));
    parts.push("environment");
    parts.extend(new.environment.names());
    Fingerprint { key, request: hash(&parts) }
}

/// Each part with its length before it, so that no two lists run together.
fn hash(parts: &[&str]) -> String {
    let mut text = String::new();
    for part in parts {
        text.push_str(&part.len().to_string());
        text.push(':');
        text.push_str(part);
    }
    Digest::of(text.as_bytes()).hex()
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["a"]), hash(&["a", ""]));
        assert_eq!(hash(&["a", "b"]), hash(&["a", "b"]));
    }
}
