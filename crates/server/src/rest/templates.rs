//! Templates: build, list, get, delete.
//!
//! A build streams both ways. What arrives goes to a file that has no name, so
//! it is gone however this ends; what happens goes to the client, a line each,
//! and the build ends when the client goes away.

use api::templates as wire;
use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderName, StatusCode, header},
};
use bytes::Bytes;
use control::{
    egress::Network,
    templates::{Build, Channel, Event, NewTemplate, Template},
};
use domain::template::{TemplateName, description::MAX_BYTES};
use futures::stream;
use http_body_util::BodyExt as _;
use tokio::{io::AsyncWriteExt as _, sync::Semaphore, time::timeout};

use super::{egress::mode, sandboxes::size};
use crate::{app::App, caller::Authenticated, error::ApiError, input, limits};

/// Places for contexts that are being received.
static RECEIVING: Semaphore = Semaphore::const_new(limits::CONTEXTS);

/// Build a template
///
/// The body is a tar file with the description and the files that it copies, at
/// most 1 GiB. The answer begins once the description is understood, and holds
/// one JSON object a line: steps, output, and as the last one `built` or
/// `failed`. Closing the connection ends the build. Steps that were done stay
/// known, so that building again goes on there.
#[utoipa::path(
    post, path = "/v1/templates", tag = "templates",
    security(("token" = ["sandboxes:write"])),
    params(wire::BuildTemplate),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses(
        (status = 200, description = "What happens, a line each", body = wire::BuildEvent,
            content_type = "application/x-ndjson"),
        (status = 400, description = "`invalid_request`, `mode_unavailable`", body = api::problem::Problem),
        (status = 413, description = "`body_too_large`", body = api::problem::Problem),
    )
)]
pub(crate) async fn build(
    State(app): State<App>,
    caller: Authenticated,
    input::Query(query): input::Query<wire::BuildTemplate>,
    request: Request,
) -> Result<([(HeaderName, &'static str); 1], Body), ApiError> {
    input::expect_type(request.headers(), wire::CONTEXT_TYPE)?;
    let size = match (&query.size, query.cpus, query.memory_mb) {
        (None, None, None) => None,
        (class, cpus, memory_mb) => Some(size(class.as_deref(), cpus, memory_mb)?),
    };
    let name = query.name.parse().map_err(|error| ApiError::field("name", error))?;
    let allow = query.allow.as_deref().filter(|list| !list.is_empty());
    let network = Network {
        mode: query.network.as_deref().map(mode).transpose()?.unwrap_or_default(),
        allow: allow.map(|list| list.split(',').map(str::to_owned).collect()),
    };
    app.control.may_build(&caller.0).await?;
    let context = receive(request.into_body()).await?;
    let file = query.file.as_deref().unwrap_or(wire::DESCRIPTION);
    let description = description(&context, file)?;
    let new = NewTemplate { name, description, context, size, network };
    let build = app.control.build_template(&caller.0, new).await?;
    let events = stream::unfold(Some((app, build)), |state| async move {
        let (app, mut build) = state?;
        let (line, is_last) = next(&app, &mut build).await?;
        Some((Ok::<_, std::convert::Infallible>(line), (!is_last).then_some((app, build))))
    });
    Ok(([(header::CONTENT_TYPE, wire::EVENTS_TYPE)], Body::from_stream(events)))
}

/// List templates
#[utoipa::path(
    get, path = "/v1/templates", tag = "templates",
    security(("token" = ["sandboxes:read"])),
    responses((status = 200, description = "The templates, by name", body = [wire::Template]))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
) -> Result<Json<Vec<wire::Template>>, ApiError> {
    let templates = app.control.list_templates(&caller.0).await?;
    Ok(Json(templates.into_iter().map(view).collect()))
}

/// Get a template
#[utoipa::path(
    get, path = "/v1/templates/{name}", tag = "templates",
    security(("token" = ["sandboxes:read"])),
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "The template", body = wire::Template),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Authenticated,
    Path(name): Path<String>,
) -> Result<Json<wire::Template>, ApiError> {
    Ok(Json(view(app.control.get_template(&caller.0, &named(&name)?).await?)))
}

/// Delete a template
///
/// With the steps that only it used. Sandboxes that were started from it run on.
#[utoipa::path(
    delete, path = "/v1/templates/{name}", tag = "templates",
    security(("token" = ["sandboxes:write"])),
    params(("name" = String, Path)),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Authenticated,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.control.delete_template(&caller.0, &named(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What can be no name names nothing.
fn named(name: &str) -> Result<TemplateName, ApiError> {
    name.parse().map_err(|_| ApiError::not_found("template"))
}

/// Writes the body into a file without a name and reads what is in it.
async fn receive(mut body: Body) -> Result<control::templates::Context, ApiError> {
    let failed = |error: std::io::Error| {
        ApiError::from(control::error::Error::Internal { source: Box::new(error) })
    };
    let _place = RECEIVING.try_acquire().map_err(|_| ApiError::busy())?;
    let file = tokio::task::spawn_blocking(tempfile::tempfile).await;
    let file = file.map_err(|error| failed(error.into()))?.map_err(failed)?;
    let mut file = tokio::fs::File::from_std(file);
    let mut length = 0;
    loop {
        let frame = timeout(limits::STALL_TIME, body.frame()).await;
        let Some(frame) = frame.map_err(|_| ApiError::slow_client())? else { break };
        let frame = frame.map_err(|_| ApiError::invalid("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len() as u64;
        if length > limits::CONTEXT {
            return Err(ApiError::too_large(
                usize::try_from(limits::CONTEXT).unwrap_or(usize::MAX),
            ));
        }
        file.write_all(&data).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    let file = file.into_std().await;
    let read = tokio::task::spawn_blocking(move || control::templates::context(file)).await;
    let read = read.map_err(|error| failed(error.into()))?;
    read.map_err(|error| ApiError::invalid(error.to_string()))
}

fn description(context: &control::templates::Context, file: &str) -> Result<String, ApiError> {
    use std::io::Read as _;
    let absent = || ApiError::field("file", format!("{file:?} is not in the body"));
    let content = context.open(file).ok_or_else(absent)?;
    let mut text = String::new();
    content
        .take(MAX_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|_| ApiError::field("file", format!("{file:?} is no text")))?;
    Ok(text)
}

/// The next line for the client, and whether it is the last.
async fn next(app: &App, build: &mut Build) -> Option<(Bytes, bool)> {
    let event = tokio::select! {
        event = timeout(limits::BUILD_SILENCE, build.next()) => match event {
            Ok(Some(event)) => told(event),
            // It went away without a word, which only the end of the server does.
            Ok(None) => return None,
            Err(_) => wire::BuildEvent::Keepalive,
        },
        () = app.stop.cancelled() => {
            wire::BuildEvent::Failed { problem: ApiError::stopping().into_problem() }
        }
    };
    let is_last = matches!(event, wire::BuildEvent::Built { .. } | wire::BuildEvent::Failed { .. });
    let mut line = serde_json::to_vec(&event).ok()?;
    line.push(b'\n');
    Some((line.into(), is_last))
}

fn told(event: Event) -> wire::BuildEvent {
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    match event {
        Event::Step { number, of, line, text, cached } => wire::BuildEvent::Step {
            number: small(number),
            of: small(of),
            line: small(line),
            text,
            cached,
        },
        Event::Output { channel, text } => {
            let stream = match channel {
                Channel::Output => "stdout",
                Channel::Error => "stderr",
            };
            wire::BuildEvent::Output { stream: stream.to_owned(), text }
        }
        Event::Note { text } => wire::BuildEvent::Note { text },
        Event::Built(template) => wire::BuildEvent::Built { template: view(*template) },
        Event::Failed(error) => {
            wire::BuildEvent::Failed { problem: ApiError::from(error).into_problem() }
        }
    }
}

fn view(template: Template) -> wire::Template {
    wire::Template {
        id: template.id,
        name: template.name.to_string(),
        base: template.base,
        image_digest: template.image.to_string(),
        size: template.size.map(|size| size.as_str().to_owned()),
        cpus: template.resources.cpus,
        memory_mb: template.resources.memory_mib,
        created_at: api::time::Time(template.created),
        built_at: api::time::Time(template.built),
    }
}
