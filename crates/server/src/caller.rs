//! Who is asking: a bearer token becomes a [`Caller`].
//!
//! It runs before any route below `/v1` is looked up, so that a stranger learns
//! nothing, not even which routes exist. A missing header, a malformed token and
//! an unknown one get the same answer. The comparison itself is the use case's,
//! over hashes and in constant time.

use axum::{
    extract::{FromRequestParts, Request, State},
    middleware::Next,
    response::Response,
};
use domain::{caller::Caller, token::Token};
use http::{HeaderMap, header, request::Parts};

use crate::{app::App, error::ApiError, newcomers::Visitor};

/// The caller of the request at hand.
#[derive(Clone, Debug)]
pub(crate) struct Authenticated(pub(crate) Caller);

/// Lets a request through when its token is good, and notes whose it is. From
/// here on its connection is a caller's and not a stranger's.
pub(crate) async fn authenticate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let token = bearer(request.headers()).ok_or(control::error::Error::Unauthenticated)?;
    let caller = app.control.authenticate(&token).await?;
    let visitor = request.extensions().get::<Visitor>();
    if !visitor.is_some_and(Visitor::settle) {
        return Err(ApiError::crowded());
    }
    request.extensions_mut().insert(Authenticated(caller));
    Ok(next.run(request).await)
}

/// The token of exactly one `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<Token> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().parse().ok())?
}

impl<S: Sync> FromRequestParts<S> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // A handler outside the layer above would get here; it is refused.
        parts.extensions.get::<Self>().cloned().ok_or(control::error::Error::Unauthenticated.into())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn exactly_one_bearer_header_counts() {
        let token = Token::from_random([1; 32]);
        let good = HeaderValue::from_str(&format!("bearer {}", token.expose())).unwrap();
        let mut headers = HeaderMap::new();
        assert!(bearer(&headers).is_none());
        headers.append(header::AUTHORIZATION, good.clone());
        assert!(bearer(&headers).is_some());
        headers.append(header::AUTHORIZATION, good);
        assert!(bearer(&headers).is_none());
        for value in ["", "Bearer", "Bearer ", "Basic dTpw", "Bearer coldframe_x"] {
            let mut headers = HeaderMap::new();
            headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert!(bearer(&headers).is_none(), "{value:?}");
        }
    }
}
