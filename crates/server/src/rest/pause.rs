//! Sandboxes that rest, and copies of sandboxes: pause, resume, fork.

use api::sandboxes as wire;
use axum::{Json, extract::State, http::StatusCode};
use control::sandboxes::{
    fork::NewFork,
    request::{Copies, Metadata, Timeout},
};
use domain::{environment::Environment, id::SandboxId};

use super::sandboxes::view;
use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// Pause a sandbox
///
/// Memory, files and processes are kept as they are; nothing runs and no time
/// passes. Answers when its machine is gone. Pausing a paused one succeeds. The
/// snapshot holds everything, secrets in memory included.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "It is paused", body = wire::Sandbox),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`, `sandbox_busy`, `pause_unsupported`", body = api::problem::Problem),
        (status = 429, description = "`quota_exceeded`", body = api::problem::Problem),
        (status = 502, description = "`snapshot_failed`: it runs on", body = api::problem::Problem),
    )
)]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
) -> Result<Json<wire::Sandbox>, ApiError> {
    Ok(Json(view(app.control.pause_sandbox(&caller.0, &id).await?)))
}

/// Resume a paused sandbox
///
/// Its processes go on where they stood. What was left of its time is left
/// still, unless `timeout_seconds` says otherwise. Resuming one that runs
/// succeeds. The body may be left out.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::Resume,
    responses(
        (status = 200, description = "It runs", body = wire::Sandbox),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`, `sandbox_busy`, `snapshot_incompatible`, `snapshot_missing`", body = api::problem::Problem),
        (status = 410, description = "`snapshot_expired`", body = api::problem::Problem),
        (status = 429, description = "`quota_exceeded`", body = api::problem::Problem),
        (status = 502, description = "`resume_failed`: it is still paused", body = api::problem::Problem),
    )
)]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::OptionalJson(resume): input::OptionalJson<wire::Resume>,
) -> Result<Json<wire::Sandbox>, ApiError> {
    let timeout = resume.timeout_seconds.map(|seconds| Timeout::seconds(seconds.into()));
    let resumed = app.control.resume_sandbox(&caller.0, &id, timeout.transpose()?).await?;
    Ok(Json(view(resumed)))
}

/// Copy a running sandbox
///
/// Each copy has the memory, the files and the processes of the sandbox, and an
/// id, a name, randomness and a time limit of its own. The sandbox stands still
/// for a moment and goes on. Answers when every copy runs or has failed. Copies
/// hold everything that the sandbox held, secrets in memory included.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::Fork,
    responses(
        (status = 201, description = "The copies", body = wire::Copies),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`, `sandbox_busy`, `pause_unsupported`", body = api::problem::Problem),
        (status = 429, description = "`quota_exceeded`: no copy was made", body = api::problem::Problem),
        (status = 502, description = "`snapshot_failed`, `start_failed`", body = api::problem::Problem),
    )
)]
pub(crate) async fn fork(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::OptionalJson(fork): input::OptionalJson<wire::Fork>,
) -> Result<(StatusCode, Json<wire::Copies>), ApiError> {
    let timeout = fork.timeout_seconds.map(|seconds| Timeout::seconds(seconds.into()));
    let new = NewFork {
        count: fork.count.map(Copies::new).transpose()?.unwrap_or_default(),
        metadata: fork.metadata.map(Metadata::new).transpose()?,
        timeout: timeout.transpose()?,
        environment: Environment::new(fork.env.0).map_err(|error| ApiError::field("env", error))?,
    };
    let copies = app.control.fork_sandbox(&caller.0, &id, new).await?;
    let items = copies.into_iter().map(view).collect();
    Ok((StatusCode::CREATED, Json(wire::Copies { items })))
}
