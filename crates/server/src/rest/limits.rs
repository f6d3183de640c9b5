//! What the caller's organisation may have (S81).

use api::limits as wire;
use axum::{Json, extract::State};

use crate::{app::App, caller::Authenticated, error::ApiError, limits};

/// Get the limits
///
/// What a token's organisation may have, and how much of it is in use.
#[utoipa::path(
    get, path = "/v1/limits", tag = "server",
    security(("token" = ["sandboxes:read"])),
    responses((status = 200, description = "The limits", body = wire::Limits))
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Authenticated,
) -> Result<Json<wire::Limits>, ApiError> {
    let given = app.control.limits(&caller.0).await?;
    let seconds = |time: std::time::Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let size =
        |(class, resources): (domain::size::SizeClass, domain::size::Resources)| wire::Size {
            name: class.as_str().to_owned(),
            cpus: resources.cpus,
            memory_mb: resources.memory_mib,
            disk_mb: resources.disk_mib,
        };
    Ok(Json(wire::Limits {
        regions: given.regions.iter().map(ToString::to_string).collect(),
        networks: given.networks.iter().map(|mode| mode.as_str().to_owned()).collect(),
        sizes: given.sizes.into_iter().map(size).collect(),
        timeout_seconds: wire::Bounds {
            min: seconds(given.min_timeout),
            max: seconds(given.max_timeout),
            default: seconds(given.default_timeout),
        },
        max_memory_mb: given.max_memory_mib,
        max_cpus: given.max_cpus,
        max_sandboxes: given.max_concurrent,
        sandboxes_in_use: given.in_use,
        max_request_bytes: limits::JSON as u64,
        max_exec_request_bytes: limits::EXEC_JSON as u64,
        max_output_bytes: limits::MAX_OUTPUT,
    }))
}
