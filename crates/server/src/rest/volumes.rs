//! Volumes: make, list, get, delete; attach and detach; checkpoints.

use api::{time::Time, volumes as wire};
use axum::{Json, extract::State, http::StatusCode};
use control::volumes::{Checkpoint, NewMount, NewVolume, VolumeView};
use domain::{
    id::{CheckpointId, SandboxId},
    volume::{MountPath, VolumeRef, VolumeSize},
};

use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// Make a volume
///
/// An empty one, or one with the data of a checkpoint. Answers when it is ready,
/// or after 45 seconds with state `making`; get it until that has changed. One
/// that could not be restored has state `failed` and says why.
#[utoipa::path(
    post, path = "/v1/volumes", tag = "volumes",
    security(("token" = ["sandboxes:write"])),
    request_body = wire::CreateVolume,
    responses(
        (status = 201, description = "The volume", body = wire::Volume),
        (status = 400, description = "`invalid_request`", body = api::problem::Problem),
        (status = 404, description = "`not_found`: no such checkpoint", body = api::problem::Problem),
        (status = 409, description = "`name_taken`, `volume_not_ready`", body = api::problem::Problem),
        (status = 429, description = "`quota_exceeded`", body = api::problem::Problem),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Authenticated,
    input::Json(create, _): input::Json<wire::CreateVolume>,
) -> Result<(StatusCode, Json<wire::Volume>), ApiError> {
    let size = create.size_mb.map(VolumeSize::mib).transpose();
    let region = create.region.map(|region| region.parse()).transpose();
    let checkpoint = create.checkpoint.map(|id| id.parse()).transpose();
    let new = NewVolume {
        name: create.name.parse().map_err(|error| ApiError::field("name", error))?,
        size: size.map_err(|error| ApiError::field("size_mb", error))?,
        region: region.map_err(|error| ApiError::field("region", error))?,
        checkpoint: checkpoint.map_err(|error| ApiError::field("checkpoint", error))?,
    };
    let volume = app.control.create_volume(&caller.0, new).await?;
    Ok((StatusCode::CREATED, Json(view(volume))))
}

/// List volumes
#[utoipa::path(
    get, path = "/v1/volumes", tag = "volumes",
    security(("token" = ["sandboxes:read"])),
    responses((status = 200, description = "The volumes by name", body = [wire::Volume]))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
) -> Result<Json<Vec<wire::Volume>>, ApiError> {
    let volumes = app.control.list_volumes(&caller.0).await?;
    Ok(Json(volumes.into_iter().map(view).collect()))
}

/// Get a volume
///
/// By its name or its id.
#[utoipa::path(
    get, path = "/v1/volumes/{id}", tag = "volumes",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The volume", body = wire::Volume),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(which): input::Id<VolumeRef>,
) -> Result<Json<wire::Volume>, ApiError> {
    Ok(Json(view(app.control.get_volume(&caller.0, &which).await?)))
}

/// Delete a volume
///
/// Its data and all its checkpoints go with it; when this answers, they are gone.
#[utoipa::path(
    delete, path = "/v1/volumes/{id}", tag = "volumes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`volume_attached`, `volume_not_ready`", body = api::problem::Problem),
        (status = 503, description = "`unavailable`: it is being deleted; ask again", body = api::problem::Problem),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(which): input::Id<VolumeRef>,
) -> Result<StatusCode, ApiError> {
    app.control.delete_volume(&caller.0, &which).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Attach a volume
///
/// Answers when it is mounted. A volume is attached to one sandbox at a time, and
/// stays so while that one is paused.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/volumes", tag = "volumes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::Mount,
    responses(
        (status = 200, description = "The volume", body = wire::Volume),
        (status = 400, description = "`invalid_request`", body = api::problem::Problem),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`volume_attached`, `volume_not_ready`, `volume_refused`, `too_many_volumes`, `sandbox_not_running`", body = api::problem::Problem),
    )
)]
pub(crate) async fn attach(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Json(mount, _): input::Json<wire::Mount>,
) -> Result<Json<wire::Volume>, ApiError> {
    let mounted = app.control.attach_volume(&caller.0, &id, new_mount(mount)?).await?;
    let which = VolumeRef::Id(mounted.volume.id);
    Ok(Json(view(app.control.get_volume(&caller.0, &which).await?)))
}

/// Detach a volume
///
/// Answers when everything was written and the sandbox has let go of it. One that
/// is not attached to the sandbox is no error.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/volumes/{volume}", tag = "volumes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path), ("volume" = String, Path)),
    responses(
        (status = 204, description = "It is free"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`volume_busy`, `volume_refused`, `sandbox_not_running`", body = api::problem::Problem),
    )
)]
pub(crate) async fn detach(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Second(which): input::Second<VolumeRef>,
) -> Result<StatusCode, ApiError> {
    app.control.detach_volume(&caller.0, &id, &which).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Make a checkpoint
///
/// The volume is held still while it is copied, if a sandbox has it; then the
/// copy goes to the object store. Answers when the checkpoint is whole, or after
/// 45 seconds with state `making`.
#[utoipa::path(
    post, path = "/v1/volumes/{id}/checkpoints", tag = "volumes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    responses(
        (status = 201, description = "The checkpoint", body = wire::Checkpoint),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`volume_not_ready`, `volume_attached`, `volume_refused`", body = api::problem::Problem),
        (status = 503, description = "`unavailable`: the object store does not answer", body = api::problem::Problem),
    )
)]
pub(crate) async fn checkpoint(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(which): input::Id<VolumeRef>,
) -> Result<(StatusCode, Json<wire::Checkpoint>), ApiError> {
    let checkpoint = app.control.create_checkpoint(&caller.0, &which).await?;
    Ok((StatusCode::CREATED, Json(view_checkpoint(checkpoint))))
}

/// List checkpoints
#[utoipa::path(
    get, path = "/v1/volumes/{id}/checkpoints", tag = "volumes",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The checkpoints, newest first", body = [wire::Checkpoint]),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn list_checkpoints(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(which): input::Id<VolumeRef>,
) -> Result<Json<Vec<wire::Checkpoint>>, ApiError> {
    let checkpoints = app.control.list_checkpoints(&caller.0, &which).await?;
    Ok(Json(checkpoints.into_iter().map(view_checkpoint).collect()))
}

/// Delete a checkpoint
///
/// With what of its data no other checkpoint of the volume needs.
#[utoipa::path(
    delete, path = "/v1/checkpoints/{id}", tag = "volumes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`volume_not_ready`", body = api::problem::Problem),
        (status = 503, description = "`unavailable`", body = api::problem::Problem),
    )
)]
pub(crate) async fn delete_checkpoint(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<CheckpointId>,
) -> Result<StatusCode, ApiError> {
    app.control.delete_checkpoint(&caller.0, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads which volume is wanted where.
pub(crate) fn new_mount(mount: wire::Mount) -> Result<NewMount, ApiError> {
    let path = mount.path.map(|path| path.parse::<MountPath>()).transpose();
    Ok(NewMount {
        volume: mount.volume.parse().map_err(|error| ApiError::field("volume", error))?,
        path: path.map_err(|error| ApiError::field("path", error))?.unwrap_or_default(),
    })
}

fn view(view: VolumeView) -> wire::Volume {
    let VolumeView { volume, used_bytes, attachment } = view;
    wire::Volume {
        id: volume.id,
        name: volume.name.to_string(),
        state: volume.state.as_str().to_owned(),
        detail: volume.detail,
        size_mb: volume.size.as_mib(),
        used_bytes,
        region: volume.region.to_string(),
        checkpoint: volume.source,
        attachment: attachment.map(|attachment| wire::Attachment {
            sandbox: attachment.sandbox,
            path: attachment.path.to_string(),
            state: attachment.state.as_str().to_owned(),
        }),
        created_at: Time(volume.created),
    }
}

fn view_checkpoint(checkpoint: Checkpoint) -> wire::Checkpoint {
    wire::Checkpoint {
        id: checkpoint.id,
        volume: checkpoint.volume,
        state: checkpoint.state.as_str().to_owned(),
        detail: checkpoint.detail,
        size_mb: checkpoint.size.as_mib(),
        data_bytes: checkpoint.data_bytes,
        stored_bytes: checkpoint.stored_bytes,
        region: checkpoint.region.to_string(),
        created_at: Time(checkpoint.created),
        finished_at: checkpoint.finished.map(Time),
    }
}
