//! The reference of this API, from the server that speaks it.

use std::sync::OnceLock;

use axum::{
    body::Bytes,
    http::{HeaderName, header},
};

/// Read the API reference
///
/// This document, in OpenAPI. Needs no token and says nothing about what is
/// there.
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "The document", content_type = "application/json"))
)]
pub(crate) async fn read() -> ([(HeaderName, &'static str); 1], Bytes) {
    // One copy, however many read it.
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| {
        // Maps with texts as keys always serialise.
        serde_json::to_vec(&crate::openapi()).unwrap_or_default().into()
    });
    ([(header::CONTENT_TYPE, "application/json")], document.clone())
}
