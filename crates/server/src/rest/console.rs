//! The console of a sandbox's machine.

use axum::{
    extract::State,
    http::{HeaderName, header},
};
use domain::id::SandboxId;

use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// Read the console
///
/// The last output of the machine's kernel and init, as far as it is kept.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/console", tag = "sandboxes",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The output", body = String, content_type = "text/plain"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn read(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
) -> Result<([(HeaderName, &'static str); 1], Vec<u8>), ApiError> {
    let output = app.control.console(&caller.0, &id).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], output))
}
