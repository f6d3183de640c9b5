//! What surrounds every request: a name, a line in the log, protective headers.
//!
//! The log holds metadata only (U16): method, the route as the router spells it,
//! status and time. Never a query, a path of a file, a header or a body, so that
//! nothing a client writes can shape a line (L-01).

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use domain::base32;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tracing::Instrument as _;

use crate::{app::App, error::ApiError, hosts::Hosts};

/// Names a request in the answer and in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What every answer says to a browser: nothing here is a page.
const PROTECTION: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; sandbox"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Gives the request a name, answers it, and writes its line.
pub(crate) async fn record(State(app): State<App>, request: Request, next: Next) -> Response {
    let id = format!("req_{}", base32::encode(&rand::random::<[u8; 16]>()));
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("-", MatchedPath::as_str);
    let begun = Instant::now();
    let span = tracing::info_span!("request", request.id = %id);
    let mut response = next.run(request).instrument(span.clone()).await;
    let headers = response.headers_mut();
    for (name, value) in PROTECTION {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, value);
    }
    app.counters.answered(response.status());
    let status = response.status().as_u16();
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(parent: &span, %method, route, status, duration_ms, "answered a request");
    response
}

/// Refuses a request that calls the server by a name it does not go by.
pub(crate) async fn check_host(
    State(hosts): State<Hosts>,
    request: Request,
    next: Next,
) -> Response {
    let named = host_of(request.headers());
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let good = named.is_some_and(|host| hosts.allow(host))
        && authority.is_none_or(|authority| hosts.allow(authority));
    if good {
        return next.run(request).await;
    }
    let detail = "this server does not go by that name; configure it or use its address";
    ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", detail).into_response()
}

/// The one `Host` header; none when there are several.
fn host_of(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::HOST).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}
