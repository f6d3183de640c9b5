//! The audit log.

use api::{audit as wire, time::Time};
use axum::{Json, extract::State};
use control::{
    audit::{AuditLine, AuditQuery},
    page::Limit,
};

use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// Read the audit log
///
/// Newest first, metadata only. The lines of one sandbox need `sandboxes:read`
/// and its id as `sandbox`; the whole log needs `admin`.
#[utoipa::path(
    get, path = "/v1/audit", tag = "audit",
    security(("token" = ["admin"])),
    params(wire::ListAudit),
    responses((status = 200, description = "A page", body = wire::AuditPage))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
    input::Query(query): input::Query<wire::ListAudit>,
) -> Result<Json<wire::AuditPage>, ApiError> {
    let query = AuditQuery {
        sandbox: query.sandbox,
        limit: query.limit.map(Limit::new).transpose()?.unwrap_or_default(),
        after: query.cursor.map(|cursor| cursor.parse()).transpose()?,
    };
    let page = app.control.list_audit(&caller.0, query).await?;
    Ok(Json(wire::AuditPage {
        items: page.items.into_iter().map(view).collect(),
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    }))
}

fn view(line: AuditLine) -> wire::AuditLine {
    wire::AuditLine {
        id: line.id.to_string(),
        at: Time(line.time),
        user: line.user.map(|user| user.to_string()),
        token: line.token.map(|token| token.to_string()),
        action: line.action,
        object: line.object,
        outcome: line.outcome.as_str().to_owned(),
        detail: line.detail,
    }
}
