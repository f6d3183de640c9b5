//! What sandboxes may reach: setting it, asking about it, reading the log.

use std::time::Duration;

use api::{egress as wire, sandboxes, time::Time};
use axum::{
    Json,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use control::{
    egress::{EgressLine, EgressQuery, Explain, ExplainRules, Follow, Network},
    page::Limit,
};
use domain::{id::SandboxId, mode::EgressMode};
use futures::stream;
use http::{HeaderValue, header};
use tokio_util::sync::CancellationToken;

use super::sandboxes::view as view_sandbox;
use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// How long a log is followed at a stretch; the client then asks again, and is
/// judged again.
const FOLLOWED: Duration = Duration::from_secs(3600);

/// Set what a sandbox may reach
///
/// Mode and list change together and at once; connections that the new rules do
/// not permit end. A mode may always be narrowed, and widened as far as the
/// installation permits.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/egress", tag = "egress",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::SetEgress,
    responses(
        (status = 200, description = "The sandbox", body = sandboxes::Sandbox),
        (status = 400, description = "`invalid_request`, `mode_unavailable`", body = api::problem::Problem),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`, `changed_meanwhile`", body = api::problem::Problem),
        (status = 503, description = "`gateway_unavailable`", body = api::problem::Problem),
    )
)]
pub(crate) async fn set(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Json(set, _): input::Json<wire::SetEgress>,
) -> Result<Json<sandboxes::Sandbox>, ApiError> {
    let network = Network { mode: mode(&set.network)?, allow: set.allow };
    Ok(Json(view_sandbox(app.control.set_egress(&caller.0, &id, network).await?)))
}

/// Read what the gateway decided
///
/// One line for each decision, newest first: who, whereto, by which rule, what
/// came of it. With `follow`, lines are sent as they are written.
#[utoipa::path(
    get, path = "/v1/egress/log", tag = "egress",
    security(("token" = ["sandboxes:read"]), ("token" = ["admin"])),
    params(wire::ListEgress),
    responses(
        (status = 200, description = "A page, or lines of JSON", body = wire::EgressPage),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn log(
    State(app): State<App>,
    caller: Authenticated,
    input::Query(query): input::Query<wire::ListEgress>,
) -> Result<Response, ApiError> {
    let follow = query.follow.unwrap_or_default();
    if follow && query.cursor.is_some() {
        return Err(ApiError::field("cursor", "a log that is followed has no pages"));
    }
    let query = EgressQuery {
        sandbox: query.sandbox,
        limit: query.limit.map(Limit::new).transpose()?.unwrap_or_default(),
        after: query.cursor.map(|cursor| cursor.parse()).transpose()?,
    };
    if follow {
        let follow = app.control.follow_egress(&caller.0, query).await?;
        return Ok(lines(follow, app.stop));
    }
    let page = app.control.list_egress(&caller.0, query).await?;
    let page = wire::EgressPage {
        items: page.items.into_iter().map(view).collect(),
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    };
    Ok(Json(page).into_response())
}

/// Explain what would happen to a request
///
/// The same decision that the gateway makes, with its steps. Nothing is sent and
/// no name is looked up.
#[utoipa::path(
    post, path = "/v1/egress/explain", tag = "egress",
    security(("token" = ["sandboxes:read"])),
    request_body = wire::ExplainEgress,
    responses(
        (status = 200, description = "What would happen", body = wire::EgressExplanation),
        (status = 400, description = "`invalid_request`", body = api::problem::Problem),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn explain(
    State(app): State<App>,
    caller: Authenticated,
    input::Json(asked, _): input::Json<wire::ExplainEgress>,
) -> Result<Json<wire::EgressExplanation>, ApiError> {
    let rules = match (asked.sandbox, asked.network, asked.allow) {
        (Some(id), None, None) => ExplainRules::Sandbox { id, uid: asked.uid },
        (Some(_), ..) => {
            return Err(ApiError::field("sandbox", "excludes network and allow"));
        }
        (None, network, allow) => {
            if asked.uid.is_some() {
                return Err(ApiError::field("uid", "needs sandbox"));
            }
            let mode = network.as_deref().map(mode).transpose()?.unwrap_or(EgressMode::Restricted);
            ExplainRules::New(Network { mode, allow })
        }
    };
    let told = app.control.explain_egress(&caller.0, Explain { url: asked.url, rules }).await?;
    let (outcome, detail, rule) = match (told.refusal, told.rule) {
        (Some(refusal), _) => (refusal.code.as_str().to_owned(), refusal.detail, refusal.rule),
        (None, rule) => {
            let detail = "it would be let out, if every address of it is public";
            ("allowed".to_owned(), detail.to_owned(), rule.unwrap_or_default())
        }
    };
    let steps = told.steps.into_iter();
    let steps = steps.map(|step| wire::EgressStep { question: step.question, answer: step.answer });
    Ok(Json(wire::EgressExplanation {
        outcome,
        detail,
        rule,
        destination: told.destination,
        steps: steps.collect(),
    }))
}

/// Reads the word for a mode.
pub(super) fn mode(word: &str) -> Result<EgressMode, ApiError> {
    word.parse().map_err(|error| ApiError::field("network", error))
}

/// Lines of JSON as they come, until the client, the server or the time ends it.
fn lines(follow: Follow, stop: CancellationToken) -> Response {
    let end = tokio::time::Instant::now() + FOLLOWED;
    let lines = stream::unfold(follow, move |mut follow| {
        let stop = stop.clone();
        async move {
            let line = tokio::select! {
                line = follow.next() => line,
                () = stop.cancelled() => return None,
                () = tokio::time::sleep_until(end) => return None,
            };
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "an egress log is not followed any more");
                    return None;
                }
            };
            // JSON escapes what is in its texts, so a line is one line.
            let mut text = serde_json::to_vec(&view(line)).ok()?;
            text.push(b'\n');
            Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), follow))
        }
    });
    let mut response = Response::new(Body::from_stream(lines));
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn view(line: EgressLine) -> wire::EgressLine {
    wire::EgressLine {
        at: Time(line.time),
        sandbox: line.sandbox,
        session: line.session,
        uid: line.uid,
        front: line.front,
        destination: line.destination,
        rule: line.rule,
        outcome: line.outcome,
        bytes_out: line.bytes_out,
        bytes_in: line.bytes_in,
        duration_ms: line.duration_ms,
        dropped: line.dropped,
    }
}
