//! Sessions: create, list, end.

use api::{sessions as wire, time::Time};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use control::sessions::{NewSession, Session};
use domain::id::{SandboxId, SessionId};

use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// Create a session
///
/// What programs of its account send is attributed to it in the egress log.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/sessions", tag = "egress",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::CreateSession,
    responses(
        (status = 201, description = "The session", body = wire::Session),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`session_exists`, `too_many_sessions`, `sandbox_not_running`", body = api::problem::Problem),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Json(create, _): input::Json<wire::CreateSession>,
) -> Result<(StatusCode, Json<wire::Session>), ApiError> {
    let new = NewSession { uid: create.uid, attended: create.attended };
    let session = app.control.create_session(&caller.0, &id, new).await?;
    Ok((StatusCode::CREATED, Json(view(session))))
}

/// List the sessions of a sandbox
///
/// Those that have not ended, oldest first.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/sessions", tag = "egress",
    security(("token" = ["sandboxes:read"])),
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The sessions", body = [wire::Session]),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
) -> Result<Json<Vec<wire::Session>>, ApiError> {
    let sessions = app.control.list_sessions(&caller.0, &id).await?;
    Ok(Json(sessions.into_iter().map(view).collect()))
}

/// End a session
///
/// Its account works for the sandbox as a whole from then on; its programs run
/// on.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}/sessions/{session}", tag = "egress",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path), ("session" = String, Path)),
    responses(
        (status = 204, description = "It has ended"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn end(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    Path((_, session)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    // What cannot be an id is judged like one that names nothing, so that the
    // sandbox is looked at first either way.
    let nothing = || SessionId::from_random([0; 16]);
    let session = session.parse().unwrap_or_else(|_| nothing());
    app.control.end_session(&caller.0, &id, &session).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn view(session: Session) -> wire::Session {
    wire::Session {
        id: session.id,
        sandbox: session.sandbox,
        uid: session.uid,
        attended: session.attended,
        owner: session.owner.to_string(),
        created_at: Time(session.created),
    }
}
