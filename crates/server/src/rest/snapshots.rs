//! Snapshots by name: create, list, get, delete.

use std::time::Duration;

use api::{snapshots as wire, time::Time};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use control::{
    page::Limit,
    snapshots::{ListSnapshots, NewSnapshot, Snapshot, SnapshotRef},
};
use domain::id::SandboxId;

use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// How long a snapshot may be kept by itself.
const KEEP: std::ops::RangeInclusive<u32> = 60..=31_536_000;

/// Keep what a running sandbox is under a name
///
/// The sandbox stands still for a moment and goes on. Sandboxes that are created
/// from the snapshot begin where it stood. Answers when the snapshot is whole. It
/// holds everything that the sandbox held, secrets in memory included.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::CreateSnapshot,
    responses(
        (status = 201, description = "It is whole", body = wire::Snapshot),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`, `sandbox_busy`, `snapshot_name_taken`, `pause_unsupported`", body = api::problem::Problem),
        (status = 429, description = "`quota_exceeded`", body = api::problem::Problem),
        (status = 502, description = "`snapshot_failed`", body = api::problem::Problem),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Json(create, _): input::Json<wire::CreateSnapshot>,
) -> Result<(StatusCode, Json<wire::Snapshot>), ApiError> {
    let keep = create.keep_seconds.map(|seconds| {
        let detail = "must be 60 to 31536000";
        let fits = KEEP.contains(&seconds);
        fits.then(|| Duration::from_secs(seconds.into()))
            .ok_or_else(|| ApiError::field("keep_seconds", detail))
    });
    let new = NewSnapshot {
        name: create.name.parse().map_err(|error| ApiError::field("name", error))?,
        keep: keep.transpose()?,
    };
    let snapshot = app.control.create_snapshot(&caller.0, &id, new).await?;
    Ok((StatusCode::CREATED, Json(view(snapshot))))
}

/// List snapshots
///
/// Those with a name, newest first.
#[utoipa::path(
    get, path = "/v1/snapshots", tag = "snapshots",
    security(("token" = ["sandboxes:read"])),
    params(wire::ListSnapshots),
    responses((status = 200, description = "A page", body = wire::SnapshotPage))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
    input::Query(query): input::Query<wire::ListSnapshots>,
) -> Result<Json<wire::SnapshotPage>, ApiError> {
    let sandbox = query.sandbox.map(|id| id.parse()).transpose();
    let query = ListSnapshots {
        sandbox: sandbox.map_err(|error| ApiError::field("sandbox", error))?,
        limit: query.limit.map(Limit::new).transpose()?.unwrap_or_default(),
        after: query.cursor.map(|cursor| cursor.parse()).transpose()?,
    };
    let page = app.control.list_snapshots(&caller.0, query).await?;
    Ok(Json(wire::SnapshotPage {
        items: page.items.into_iter().map(view).collect(),
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    }))
}

/// Get a snapshot
///
/// By its name or its id.
#[utoipa::path(
    get, path = "/v1/snapshots/{name}", tag = "snapshots",
    security(("token" = ["sandboxes:read"])),
    params(("name" = String, Path, description = "Its name or its id")),
    responses(
        (status = 200, description = "The snapshot", body = wire::Snapshot),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Authenticated,
    Path(name): Path<String>,
) -> Result<Json<wire::Snapshot>, ApiError> {
    let which: SnapshotRef = name.parse()?;
    Ok(Json(view(app.control.get_snapshot(&caller.0, &which).await?)))
}

/// Remove a snapshot
///
/// When this answers, its key is gone and nothing can be started from it.
/// Sandboxes that were started from it run on.
#[utoipa::path(
    delete, path = "/v1/snapshots/{name}", tag = "snapshots",
    security(("token" = ["sandboxes:write"])),
    params(("name" = String, Path, description = "Its name or its id")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`snapshot_not_ready`", body = api::problem::Problem),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Authenticated,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let which: SnapshotRef = name.parse()?;
    app.control.delete_snapshot(&caller.0, &which).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn view(snapshot: Snapshot) -> wire::Snapshot {
    wire::Snapshot {
        id: snapshot.id,
        name: snapshot.name.map(|name| name.to_string()),
        kind: snapshot.kind.as_str().to_owned(),
        state: snapshot.state.as_str().to_owned(),
        sandbox: snapshot.sandbox,
        parent: snapshot.parent,
        template: snapshot.template.to_string(),
        image_digest: snapshot.image.to_string(),
        cpus: snapshot.resources.cpus,
        memory_mb: snapshot.resources.memory_mib,
        region: snapshot.region.to_string(),
        stored_bytes: snapshot.stored_bytes,
        memory_bytes: snapshot.memory_bytes,
        created_at: Time(snapshot.created),
        expires_at: snapshot.expires.map(Time),
    }
}
