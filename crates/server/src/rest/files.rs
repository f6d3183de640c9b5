//! Files of a sandbox as raw bytes, streaming both ways with flat memory.
//!
//! A path is one inside the sandbox and is never looked at by the host's file
//! system; what it names is the guest's to say, with the rights of the account.

use api::files as wire;
use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use domain::id::SandboxId;
use guest_protocol::{
    client::{BoxError, ClientError, GuestClient, USER_HEADER},
    connect,
    filesystem::{EntryInfo, FileType, WriteInfo},
};
use http_body_util::{BodyExt as _, Empty, Limited};

use crate::{
    app::App,
    caller::Authenticated,
    error::ApiError,
    guest::{
        Door,
        body::{Answer, Meter},
        with_path,
    },
    input,
};

/// The largest answer of a guest to a write, and the largest error.
const MAX_SMALL: usize = 64 * 1024;

/// Read a file or list a directory
///
/// A file comes as it is; `Range` is honoured. A directory comes as JSON.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/files", tag = "files",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path), wire::FileQuery),
    responses(
        (status = 200, description = "The bytes of the file, or the directory", content(
            (Vec<u8> = "application/octet-stream"),
            (wire::Directory = "application/json"),
        )),
        (status = 404, description = "`not_found`, `path_not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`", body = api::problem::Problem),
    )
)]
pub(crate) async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Query(query): input::Query<wire::FileQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut share = app.memory.share();
    let door = Door::new(app, caller, id);
    let request = outgoing("GET", &query, headers.get(header::RANGE), header::RANGE);
    let empty = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let answer = door.call(request.body(empty).map_err(unsendable)?, Meter::default()).await?;
    let status = answer.status();
    if status.is_success() {
        let (mut parts, body) = answer.into_parts();
        // A guest does not choose what a browser makes of these bytes.
        let bytes = HeaderValue::from_static("application/octet-stream");
        parts.headers.insert(header::CONTENT_TYPE, bytes);
        return Ok(Response::from_parts(parts, Body::new(body)));
    }
    let refusal = refusal(answer).await?;
    if status != StatusCode::BAD_REQUEST {
        return Err(refusal);
    }
    // What cannot be read as a file may be a directory. The guest's list is held
    // until it is whole; the answer made from it is charged like any other.
    if !share.grow(connect::MAX_MESSAGE) {
        return Err(ApiError::busy());
    }
    let user = query.user.as_deref().unwrap_or("user");
    match GuestClient::new(door).list_dir(&query.path, 1, user).await {
        Ok(entries) => {
            let entries = entries.into_iter().map(view).collect();
            Ok(Json(wire::Directory { entries }).into_response())
        }
        Err(ClientError::Refused(_)) => Err(refusal),
        Err(error) => Err(called(error)),
    }
}

/// Write a file
///
/// The body is the content. Missing parents are made and an existing file is
/// replaced. Written with the rights of the account.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/files", tag = "files",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path), wire::FileQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "It is written", body = wire::Written),
        (status = 400, description = "`invalid_request`, `unknown_user`", body = api::problem::Problem),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 507, description = "`sandbox_exhausted`", body = api::problem::Problem),
    )
)]
pub(crate) async fn write(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Query(query): input::Query<wire::FileQuery>,
    request: Request,
) -> Result<Json<wire::Written>, ApiError> {
    let bytes = HeaderValue::from_static("application/octet-stream");
    let outgoing = outgoing("POST", &query, Some(&bytes), header::CONTENT_TYPE);
    let body = request.into_body().map_err(BoxError::from).boxed_unsync();
    let meter = Meter::default();
    let door = Door::new(app, caller, id);
    let answer = door.call(outgoing.body(body).map_err(unsendable)?, meter.clone()).await?;
    if !answer.status().is_success() {
        return Err(refusal(answer).await?);
    }
    let body = small(answer.into_body()).await?;
    let written: Vec<WriteInfo> = serde_json::from_slice(&body).map_err(ApiError::guest_broke)?;
    let first = written.into_iter().next();
    let first = first.ok_or_else(|| ApiError::guest_broke("nothing was written"))?;
    Ok(Json(wire::Written { path: first.path, size: meter.bytes() }))
}

/// Delete a file or a directory
///
/// A directory goes with all it holds. Deleting what is not there succeeds.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/files", tag = "files",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path), wire::FileQuery),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Query(query): input::Query<wire::FileQuery>,
) -> Result<StatusCode, ApiError> {
    let user = query.user.as_deref().unwrap_or("user");
    let client = GuestClient::new(Door::new(app, caller, id));
    client.remove(&query.path, user).await.map_err(called)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A request to the guest's `/files`.
fn outgoing(
    method: &str,
    query: &wire::FileQuery,
    value: Option<&HeaderValue>,
    name: HeaderName,
) -> http::request::Builder {
    let mut request = http::Request::builder().method(method).uri(with_path("/files", &query.path));
    if let Some(value) = value {
        request = request.header(name, value);
    }
    request.header(USER_HEADER, query.user.as_deref().unwrap_or("user"))
}

fn unsendable(_: http::Error) -> ApiError {
    ApiError::field("user", "not an account name")
}

/// What a guest's plain error (`{"code":404,"message":…}`) means.
async fn refusal(answer: http::Response<Answer>) -> Result<ApiError, ApiError> {
    #[derive(Default, serde::Deserialize)]
    struct Plain {
        #[serde(default)]
        message: String,
    }
    let status = answer.status();
    let body = small(answer.into_body()).await?;
    let plain: Plain = serde_json::from_slice(&body).unwrap_or_default();
    let code = match status {
        StatusCode::BAD_REQUEST => connect::Code::InvalidArgument,
        StatusCode::RANGE_NOT_SATISFIABLE => connect::Code::OutOfRange,
        StatusCode::CONFLICT => connect::Code::AlreadyExists,
        StatusCode::UNAUTHORIZED => connect::Code::Unauthenticated,
        StatusCode::FORBIDDEN => connect::Code::PermissionDenied,
        StatusCode::NOT_FOUND => connect::Code::NotFound,
        StatusCode::INSUFFICIENT_STORAGE | StatusCode::TOO_MANY_REQUESTS => {
            connect::Code::ResourceExhausted
        }
        _ => connect::Code::Unknown,
    };
    Ok(ApiError::guest_refused(&connect::Error::new(code, plain.message)))
}

/// What a failed call of the guest client means.
pub(super) fn called(error: ClientError) -> ApiError {
    match error {
        ClientError::Refused(error) => ApiError::guest_refused(&error),
        ClientError::Unreachable(source) => match source.downcast::<ApiError>() {
            Ok(error) => *error,
            Err(source) => ApiError::guest_broke(source),
        },
        error @ ClientError::Unreadable(_) => ApiError::guest_broke(error),
    }
}

async fn small(body: Answer) -> Result<bytes::Bytes, ApiError> {
    let collected = Limited::new(body, MAX_SMALL).collect().await;
    Ok(collected.map_err(ApiError::guest_broke)?.to_bytes())
}

fn view(entry: EntryInfo) -> wire::Entry {
    let kind = match entry.kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Unspecified => "other",
    };
    wire::Entry {
        name: entry.name,
        path: entry.path,
        kind: kind.to_owned(),
        size: u64::try_from(entry.size).unwrap_or_default(),
        permissions: entry.permissions,
        owner: entry.owner,
        group: entry.group,
        modified_at: entry.modified_time,
        symlink_target: entry.symlink_target,
    }
}
