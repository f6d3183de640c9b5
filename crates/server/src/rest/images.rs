//! Images: what there is to start from.

use api::images as wire;
use axum::{
    Json,
    extract::{Path, State},
};
use control::images::ImageSummary;

use crate::{app::App, caller::Authenticated, error::ApiError};

/// List images
#[utoipa::path(
    get, path = "/v1/images", tag = "images",
    security(("token" = ["sandboxes:read"]), ("token" = ["admin"])),
    responses((status = 200, description = "The images", body = [wire::Image]))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
) -> Result<Json<Vec<wire::Image>>, ApiError> {
    let images = app.control.list_images(&caller.0).await?;
    Ok(Json(images.into_iter().map(view).collect()))
}

/// Get an image
#[utoipa::path(
    get, path = "/v1/images/{name}", tag = "images",
    security(("token" = ["sandboxes:read"]), ("token" = ["admin"])),
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "The image", body = wire::Image),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Authenticated,
    Path(name): Path<String>,
) -> Result<Json<wire::Image>, ApiError> {
    let name = name.parse().map_err(|_| ApiError::not_found("image"))?;
    Ok(Json(view(app.control.get_image(&caller.0, &name).await?)))
}

fn view(image: ImageSummary) -> wire::Image {
    wire::Image {
        name: image.name.to_string(),
        digest: image.digest.map(|digest| digest.to_string()),
        release: image.release,
        size_bytes: image.size_bytes,
        ready: image.ready,
    }
}
