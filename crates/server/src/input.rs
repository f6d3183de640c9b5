//! How a request is read: a JSON body, a query, an id in the path.
//!
//! Each refusal names the part that is wrong. An id that cannot be one is the
//! same 404 as an id that names nothing.

use std::str::FromStr;

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Path, Request},
};
use bytes::{Bytes, BytesMut};
use domain::{
    id::{CheckpointId, SandboxId, TokenId},
    volume::VolumeRef,
};
use http::{HeaderMap, header, request::Parts};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{app::App, error::ApiError, limits, memory::Share};

/// A JSON body of at most `LIMIT` bytes, and the memory it was given.
#[derive(Debug)]
pub(crate) struct Json<T, const LIMIT: usize = { limits::JSON }>(pub(crate) T, pub(crate) Share);

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct OptionalJson<T>(pub(crate) T);

/// A query string.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

/// The id in the path.
#[derive(Debug)]
pub(crate) struct Id<T>(pub(crate) T);

/// What a path names behind the id, in the parameter `volume`.
#[derive(Debug)]
pub(crate) struct Second<T>(pub(crate) T);

/// A noun that a path names by its id.
pub(crate) trait Noun: FromStr {
    /// What a person calls it.
    const NOUN: &'static str;
}

impl Noun for SandboxId {
    const NOUN: &'static str = "sandbox";
}

impl Noun for TokenId {
    const NOUN: &'static str = "token";
}

impl Noun for VolumeRef {
    const NOUN: &'static str = "volume";
}

impl Noun for CheckpointId {
    const NOUN: &'static str = "checkpoint";
}

impl<T: DeserializeOwned, const LIMIT: usize> FromRequest<App> for Json<T, LIMIT> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        expect_type(request.headers(), "application/json")?;
        let mut share = app.memory.share();
        let body = collect(request.into_body(), LIMIT, &mut share).await?;
        // The reader's text names fields and positions; of content it repeats at
        // most a single short value, to the one who sent it.
        let value = serde_json::from_slice(&body);
        value.map(|value| Self(value, share)).map_err(|error| ApiError::invalid(error.to_string()))
    }
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        if request.body().is_end_stream() {
            return Ok(Self(T::default()));
        }
        let Json(value, _) = Json::<T>::from_request(request, app).await?;
        Ok(Self(value))
    }
}

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| ApiError::invalid(error.body_text()))
    }
}

impl<S: Send + Sync, T: Noun> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        parameter(parts, state, "id").await.map(Self)
    }
}

impl<S: Send + Sync, T: Noun> FromRequestParts<S> for Second<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        parameter(parts, state, "volume").await.map(Self)
    }
}

/// A part of the path. Some paths have several, so they are read by name.
async fn parameter<S: Send + Sync, T: Noun>(
    parts: &mut Parts,
    state: &S,
    name: &str,
) -> Result<T, ApiError> {
    let params =
        Path::<std::collections::HashMap<String, String>>::from_request_parts(parts, state);
    let params = params.await.map_err(|_| ApiError::not_found(T::NOUN))?;
    let raw = params.get(name).ok_or(ApiError::not_found(T::NOUN))?;
    raw.parse().map_err(|_| ApiError::not_found(T::NOUN))
}

/// Refuses another media type than `expected`; parameters do not count.
pub(crate) fn expect_type(headers: &HeaderMap, expected: &str) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    if given.eq_ignore_ascii_case(expected) {
        Ok(())
    } else {
        Err(ApiError::content_type(expected))
    }
}

/// Reads a whole body of at most `limit` bytes into memory that `share` grows by.
pub(crate) async fn collect(
    mut body: Body,
    limit: usize,
    share: &mut Share,
) -> Result<Bytes, ApiError> {
    let reading = async {
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ApiError::invalid("the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > limit {
                return Err(ApiError::too_large(limit));
            }
            if !share.grow(data.len()) {
                return Err(ApiError::busy());
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    };
    timeout(limits::BODY_TIME, reading).await.map_err(|_| ApiError::slow_client())?
}
