//! How busy sandboxes are, for their owners and for the operator.

use api::{metrics as wire, time::Time};
use axum::{
    Json,
    extract::State,
    http::{HeaderName, header},
};
use control::metrics::Sample;
use domain::id::SandboxId;

use crate::{app::App, caller::Authenticated, error::ApiError, input, numbers};

/// Get the metrics of a sandbox
///
/// Samples of the last minutes; the last one is of now. To look does not keep a
/// sandbox awake.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/metrics", tag = "sandboxes",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The samples", body = wire::Metrics),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`", body = api::problem::Problem),
    )
)]
pub(crate) async fn sandbox(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
) -> Result<Json<wire::Metrics>, ApiError> {
    let samples = app.control.metrics(&caller.0, &id).await?;
    Ok(Json(wire::Metrics { samples: samples.into_iter().map(view).collect() }))
}

/// Get the metrics of the installation
///
/// In the text form that Prometheus reads. No number is about one sandbox or one
/// organisation.
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    security(("token" = ["admin"])),
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain"))
)]
pub(crate) async fn operator(
    State(app): State<App>,
    caller: Authenticated,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    let overview = app.control.overview(&caller.0).await?;
    let text = numbers::text(&overview, &app.counters, &app.memory);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

#[allow(clippy::cast_precision_loss, reason = "seconds need no more digits")]
fn view(sample: Sample) -> wire::Sample {
    let inside = sample.inside;
    wire::Sample {
        time: Time(sample.time),
        cpu_percent: sample.cpu_percent,
        cpu_seconds: sample.cpu_us.map(|us| us as f64 / 1e6),
        host_memory_bytes: sample.memory_bytes,
        memory_used_bytes: inside.map(|inside| inside.memory_used),
        memory_total_bytes: inside.map(|inside| inside.memory_total),
        disk_used_bytes: inside.map(|inside| inside.disk_used),
        disk_total_bytes: inside.map(|inside| inside.disk_total),
        processes: inside.map(|inside| inside.processes),
    }
}
