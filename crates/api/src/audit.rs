//! The audit log on the wire.

use domain::id::SandboxId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// One line: who did what to which object, and what came of it. Metadata only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// Its id.
    pub id: String,
    /// When.
    pub at: Time,
    /// Who, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// With which token, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What, such as `sandbox.create`.
    pub action: String,
    /// On what: a sandbox, a token, an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// `allowed` or `refused`; a refusal has its code in `detail`.
    pub outcome: String,
    /// Facts about it: sizes, counts, names. Never content.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub detail: serde_json::Map<String, serde_json::Value>,
}

/// A page of lines, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The lines.
    pub items: Vec<AuditLine>,
    /// What to pass as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which lines to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListAudit {
    /// Only those about this sandbox. Without it the whole log is meant, which
    /// needs `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// The most lines to return, 1 to 200; 50 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
