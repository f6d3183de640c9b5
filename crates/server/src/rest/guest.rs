//! The API inside a sandbox, for our own clients.

use axum::{
    body::Body,
    extract::{Request, State},
    response::Response,
};
use domain::id::SandboxId;
use guest_protocol::client::BoxError;
use http::Uri;
use http_body_util::BodyExt as _;

use crate::{
    app::App,
    caller::Authenticated,
    error::ApiError,
    guest::{Door, body::Meter},
    input,
};

/// Reads from the API inside a sandbox
///
/// `path` is one of `health`, `metrics` and `files`; bytes stream through as
/// they are. `X-Coldframe-User` names the account.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/guest/{*path}", tag = "guest",
    security(("token" = ["sandboxes:read"])),
    params(
        ("id" = String, Path), ("path" = String, Path),
        ("X-Coldframe-User" = Option<String>, Header, description = "The account; `user` if absent"),
    ),
    responses(
        (status = 200, description = "What the guest answered"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 502, description = "`guest_unreachable`", body = api::problem::Problem),
    )
)]
pub(crate) async fn read(
    state: State<App>,
    caller: Authenticated,
    id: input::Id<SandboxId>,
    request: Request,
) -> Result<Response, ApiError> {
    forward(state, caller, id, request).await
}

/// Calls the API inside a sandbox
///
/// `path` is `files` or a method of `process.Process` or
/// `filesystem.Filesystem`; bytes stream both ways as they are. Methods that
/// only read need `sandboxes:read`.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/guest/{*path}", tag = "guest",
    security(("token" = ["sandboxes:write"]), ("token" = ["sandboxes:read"])),
    params(
        ("id" = String, Path), ("path" = String, Path),
        ("X-Coldframe-User" = Option<String>, Header, description = "The account; `user` if absent"),
    ),
    responses(
        (status = 200, description = "What the guest answered"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 413, description = "`body_too_large`", body = api::problem::Problem),
        (status = 502, description = "`guest_unreachable`", body = api::problem::Problem),
    )
)]
pub(crate) async fn call(
    state: State<App>,
    caller: Authenticated,
    id: input::Id<SandboxId>,
    request: Request,
) -> Result<Response, ApiError> {
    forward(state, caller, id, request).await
}

async fn forward(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    input::Id(id): input::Id<SandboxId>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    parts.uri = inner(&parts.uri, &id).ok_or_else(|| ApiError::not_found("path"))?;
    let body = body.map_err(BoxError::from).boxed_unsync();
    let answer = Door::new(app, caller, id)
        .call(http::Request::from_parts(parts, body), Meter::default())
        .await?;
    Ok(answer.map(Body::new))
}

/// The guest's part of a URI, exactly as it was sent: nothing is decoded, so no
/// other spelling can come out as an allowed path.
fn inner(uri: &Uri, id: &SandboxId) -> Option<Uri> {
    let prefix = format!("/v1/sandboxes/{id}/guest");
    uri.path_and_query()?.as_str().strip_prefix(&prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inner_path_is_cut_out_as_it_was_sent() {
        let id = SandboxId::from_random([1; 16]);
        let uri: Uri = format!("/v1/sandboxes/{id}/guest/files?path=%2e%2E").parse().unwrap();
        assert_eq!(inner(&uri, &id).unwrap(), "/files?path=%2e%2E");
        let uri: Uri = format!("/v1/sandboxes/{id}/%67uest/files").parse().unwrap();
        assert!(inner(&uri, &id).is_none());
    }
}
