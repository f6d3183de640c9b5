//! Whether the server can answer.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{app::App, error::ApiError};

/// The server can answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Ask whether the server is ready
///
/// Needs no token and says nothing about what is there.
#[utoipa::path(
    get, path = "/healthz", tag = "server", security(()),
    responses(
        (status = 200, description = "Requests are answered", body = Health),
        (status = 503, description = "Not now", body = api::problem::Problem),
    )
)]
pub(crate) async fn health(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    if app.stop.is_cancelled() {
        return Err(ApiError::stopping());
    }
    app.control.ready().await?;
    Ok(Json(Health { status: "ok" }))
}
