//! Sandboxes: create, list, get, end, set the time limit.

use api::{sandboxes as wire, time::Time};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use control::{
    egress::Network,
    page::Limit,
    sandboxes::{
        ListSandboxes, Sandbox,
        request::{IdempotencyKey, IdleTimeout, Metadata, NewSandbox, SizeChoice, Timeout},
    },
    snapshots::SnapshotRef,
};
use domain::{environment::Environment, id::SandboxId};

use super::egress::mode;
use crate::{app::App, caller::Authenticated, error::ApiError, input, rest::volumes};

/// What stands for a template where a snapshot is named; nobody reads it.
const UNUSED: &str = "snapshot";

/// Create a sandbox
///
/// Answers when it runs. With an `Idempotency-Key` header, a repeated request
/// returns the sandbox that the first one made.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters")),
    request_body = wire::CreateSandbox,
    responses(
        (status = 201, description = "It runs", body = wire::Sandbox),
        (status = 400, description = "`invalid_request`, `mode_unavailable`", body = api::problem::Problem),
        (status = 404, description = "`not_found`: no such snapshot or volume", body = api::problem::Problem),
        (status = 409, description = "`image_refused`, `idempotency_key_reused`, `snapshot_not_ready`, `snapshot_incompatible`, `snapshot_missing`, `volume_attached`, `volume_not_ready`", body = api::problem::Problem),
        (status = 429, description = "`quota_exceeded`", body = api::problem::Problem),
        (status = 502, description = "`start_failed`", body = api::problem::Problem),
        (status = 503, description = "`gateway_unavailable`", body = api::problem::Problem),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Authenticated,
    headers: HeaderMap,
    input::Json(create, _): input::Json<wire::CreateSandbox>,
) -> Result<(StatusCode, Json<wire::Sandbox>), ApiError> {
    let new = new_sandbox(create, &headers)?;
    let sandbox = app.control.create_sandbox(&caller.0, new).await?;
    Ok((StatusCode::CREATED, Json(view(sandbox))))
}

/// List sandboxes
///
/// Newest first, ended ones included.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "sandboxes",
    security(("token" = ["sandboxes:read"])),
    params(wire::ListSandboxes),
    responses((status = 200, description = "A page", body = wire::SandboxPage))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
    input::Query(query): input::Query<wire::ListSandboxes>,
) -> Result<Json<wire::SandboxPage>, ApiError> {
    let phase = query.state.map(|state| state.parse()).transpose();
    let query = ListSandboxes {
        phase: phase.map_err(|error| ApiError::field("state", error))?,
        limit: query.limit.map(Limit::new).transpose()?.unwrap_or_default(),
        after: query.cursor.map(|cursor| cursor.parse()).transpose()?,
    };
    let page = app.control.list_sandboxes(&caller.0, query).await?;
    Ok(Json(wire::SandboxPage {
        items: page.items.into_iter().map(view).collect(),
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    }))
}

/// Get a sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The sandbox", body = wire::Sandbox),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
) -> Result<Json<wire::Sandbox>, ApiError> {
    Ok(Json(view(app.control.get_sandbox(&caller.0, &id).await?)))
}

/// End a sandbox
///
/// Everything in it is destroyed; when this answers, it is gone. Ending one that
/// has ended succeeds.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn terminate(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
) -> Result<StatusCode, ApiError> {
    app.control.terminate_sandbox(&caller.0, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set the time limit of a sandbox
///
/// Counted from now; it may be sooner or later than before.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/timeout", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::SetTimeout,
    responses(
        (status = 200, description = "The sandbox", body = wire::Sandbox),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`", body = api::problem::Problem),
    )
)]
pub(crate) async fn set_timeout(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Json(set, _): input::Json<wire::SetTimeout>,
) -> Result<Json<wire::Sandbox>, ApiError> {
    let timeout = Timeout::seconds(set.timeout_seconds.into())?;
    Ok(Json(view(app.control.set_timeout(&caller.0, &id, timeout).await?)))
}

/// Reads a request into what the use case takes; each refusal names its field.
fn new_sandbox(create: wire::CreateSandbox, headers: &HeaderMap) -> Result<NewSandbox, ApiError> {
    let snapshot: Option<SnapshotRef> =
        create.snapshot.as_deref().map(str::parse).transpose().map_err(|error| match error {
            control::error::Error::NotFound { noun } => ApiError::not_found(noun),
            error => error.into(),
        })?;
    match (create.template.as_str(), &snapshot) {
        ("", None) => {
            return Err(ApiError::field("template", "name a template, or a snapshot"));
        }
        ("", Some(_)) | (_, None) => {}
        (_, Some(_)) => {
            return Err(ApiError::field("snapshot", "give either template or snapshot"));
        }
    }
    let template = if snapshot.is_some() { UNUSED } else { &create.template };
    let given = create.size.is_some() || create.cpus.is_some() || create.memory_mb.is_some();
    if snapshot.is_some() && given {
        return Err(ApiError::field("size", "a sandbox from a snapshot has its size"));
    }
    let size = size(create.size.as_deref(), create.cpus, create.memory_mb)?;
    let key = headers.get("idempotency-key").map(|key| {
        let key = key.to_str().map_err(|_| ApiError::field("Idempotency-Key", "not ASCII"))?;
        Ok::<_, ApiError>(IdempotencyKey::new(key.to_owned())?)
    });
    let timeout = create.timeout_seconds.map(|seconds| Timeout::seconds(seconds.into()));
    let volumes = create.volumes.into_iter().map(volumes::new_mount);
    Ok(NewSandbox {
        template: template.parse().map_err(|error| ApiError::field("template", error))?,
        snapshot,
        size,
        network: Network {
            mode: create.network.as_deref().map(mode).transpose()?.unwrap_or_default(),
            allow: create.allow,
        },
        timeout: timeout.transpose()?.unwrap_or_default(),
        on_timeout: create
            .on_timeout
            .map(|word| word.parse())
            .transpose()
            .map_err(|error| ApiError::field("on_timeout", error))?
            .unwrap_or_default(),
        idle: create
            .idle_timeout_seconds
            .map(|seconds| IdleTimeout::seconds(seconds.into()))
            .transpose()?,
        auto_resume: create.auto_resume,
        environment: Environment::new(create.env.0)
            .map_err(|error| ApiError::field("env", error))?,
        metadata: Metadata::new(create.metadata)?,
        volumes: volumes.collect::<Result<_, _>>()?,
        region: create
            .region
            .map(|region| region.parse())
            .transpose()
            .map_err(|error| ApiError::field("region", error))?,
        idempotency_key: key.transpose()?,
    })
}

/// A size by its name or in numbers; the smallest if nothing is said.
pub(super) fn size(
    class: Option<&str>,
    cpus: Option<u8>,
    memory_mb: Option<u32>,
) -> Result<SizeChoice, ApiError> {
    match (class, cpus, memory_mb) {
        (None, None, None) => Ok(SizeChoice::Class(Default::default())),
        (Some(class), None, None) => {
            let class = class.parse().map_err(|error| ApiError::field("size", error))?;
            Ok(SizeChoice::Class(class))
        }
        (None, Some(cpus), Some(memory_mib)) => Ok(SizeChoice::Explicit { cpus, memory_mib }),
        _ => Err(ApiError::field("size", "give either size, or cpus and memory_mb")),
    }
}

/// A sandbox as clients see it.
pub(super) fn view(sandbox: Sandbox) -> wire::Sandbox {
    wire::Sandbox {
        id: sandbox.id,
        state: sandbox.phase.as_str().to_owned(),
        template: sandbox.template.to_string(),
        image_digest: sandbox.image.to_string(),
        size: sandbox.size.map(|size| size.as_str().to_owned()),
        cpus: sandbox.resources.cpus,
        memory_mb: sandbox.resources.memory_mib,
        disk_mb: sandbox.resources.disk_mib,
        network: sandbox.network.as_str().to_owned(),
        allow: sandbox.egress.allow,
        region: sandbox.region.to_string(),
        metadata: sandbox.metadata,
        created_at: Time(sandbox.created),
        started_at: sandbox.started.map(Time),
        ended_at: sandbox.ended.map(Time),
        expires_at: sandbox.expires.map(Time),
        on_timeout: sandbox.rest.on_timeout.as_str().to_owned(),
        idle_timeout_seconds: sandbox.rest.idle.map(|idle| idle.as_secs()),
        auto_resume: sandbox.rest.auto_resume,
        paused_at: sandbox.rest.paused.map(Time),
        remaining_seconds: sandbox.rest.remaining.map(|remaining| remaining.as_secs()),
        snapshot: sandbox.parent,
        ending: sandbox.ending.map(|ending| wire::Ending {
            code: ending.cause.as_str().to_owned(),
            detail: ending.detail,
        }),
    }
}
