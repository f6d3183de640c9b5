//! Every route, with the time it may take.
//!
//! `/v1` is behind authentication as a whole, unknown paths included. A group of
//! routes has one time limit; streams and exec bound themselves.

use std::time::Duration;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use http::StatusCode;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    access,
    app::App,
    caller,
    error::ApiError,
    hosts::Hosts,
    limits, memory,
    rest::{
        audit, console, egress, exec, files, guest, health, images, limits as limit, metrics,
        pause, reference, sandboxes, sessions, snapshots, templates, tokens, volumes,
    },
};

/// The routes and their description.
pub(crate) fn routes() -> OpenApiRouter<App> {
    let ordinary = OpenApiRouter::new()
        .routes(routes!(sandboxes::list))
        .routes(routes!(sandboxes::get, sandboxes::terminate))
        .routes(routes!(sandboxes::set_timeout))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::get, snapshots::delete))
        .routes(routes!(console::read))
        .routes(routes!(metrics::sandbox))
        .routes(routes!(metrics::operator))
        .routes(routes!(images::list))
        .routes(routes!(images::get))
        .routes(routes!(templates::list))
        .routes(routes!(templates::get, templates::delete))
        .routes(routes!(limit::get))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
        .routes(routes!(audit::list))
        .routes(routes!(egress::set))
        .routes(routes!(egress::explain))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::end))
        .routes(routes!(files::remove))
        .routes(routes!(volumes::list))
        .routes(routes!(volumes::get))
        .routes(routes!(volumes::list_checkpoints))
        .layer(from_fn_with_state(limits::REQUEST_TIME, within));
    let slow = OpenApiRouter::new()
        .routes(routes!(sandboxes::create))
        .routes(routes!(volumes::create))
        .routes(routes!(volumes::delete))
        .routes(routes!(volumes::attach))
        .routes(routes!(volumes::detach))
        .routes(routes!(volumes::checkpoint))
        .routes(routes!(volumes::delete_checkpoint))
        .routes(routes!(pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(pause::fork))
        .routes(routes!(snapshots::create))
        .layer(from_fn_with_state(limits::CREATE_TIME, within));
    let streams = OpenApiRouter::new()
        .routes(routes!(egress::log))
        .routes(routes!(exec::exec))
        .routes(routes!(templates::build))
        .routes(routes!(files::read, files::write))
        .routes(routes!(guest::read, guest::call));
    OpenApiRouter::new().merge(ordinary).merge(slow).merge(streams)
}

/// The whole service.
pub(crate) fn service(app: App, hosts: Hosts) -> Router {
    let (versioned, _) = routes().split_for_parts();
    let versioned = versioned
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), memory::charge))
        .layer(from_fn_with_state(app.clone(), caller::authenticate));
    let (open, _) = open_routes().split_for_parts();
    open.merge(versioned)
        .layer(from_fn_with_state(hosts, access::check_host))
        .layer(from_fn_with_state(app.clone(), access::record))
        .with_state(app)
}

/// The routes that need no token.
pub(crate) fn open_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(health::health)).routes(routes!(reference::read))
}

async fn unknown() -> ApiError {
    ApiError::not_found("path")
}

async fn wrong_method() -> ApiError {
    let detail = "this path does not know that method";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

/// Ends a request that takes too long.
async fn within(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::timeout().into_response(),
    }
}
