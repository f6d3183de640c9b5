//! `/health` and `/envs`: what anyone may ask.

use hyper::{Method, Response, StatusCode};

use super::Api;
use crate::http::body::{self, Body};

/// Answers one of the two, or nothing.
pub(crate) fn answer(api: &Api, method: &Method, path: &str) -> Option<Response<Body>> {
    if method != Method::GET && method != Method::HEAD {
        return None;
    }
    match path {
        "/health" => Some(body::empty(StatusCode::NO_CONTENT)),
        "/envs" => {
            let environment = api.environment.borrow();
            let object: serde_json::Map<String, serde_json::Value> = environment
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().into()))
                .collect();
            let text = serde_json::Value::Object(object).to_string();
            Some(body::json(StatusCode::OK, text))
        }
        _ => None,
    }
}
