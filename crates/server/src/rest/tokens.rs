//! Tokens: mint, list, revoke.

use api::{time::Time, tokens as wire};
use axum::{Json, extract::State, http::StatusCode};
use control::tokens::{NewToken, TokenName, TokenRecord};
use domain::{id::TokenId, scope::Scopes};

use crate::{app::App, caller::Authenticated, error::ApiError, input};

/// Make a token
///
/// Its text is in this answer and nowhere else afterwards.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "tokens",
    security(("token" = ["admin"])),
    request_body = wire::CreateToken,
    responses(
        (status = 201, description = "The token", body = wire::NewToken),
        (status = 400, description = "`invalid_request`", body = api::problem::Problem),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Authenticated,
    input::Json(create, _): input::Json<wire::CreateToken>,
) -> Result<(StatusCode, Json<wire::NewToken>), ApiError> {
    let scopes: Result<_, _> = create.scopes.iter().map(|scope| scope.parse()).collect();
    let scopes = scopes.and_then(Scopes::new).map_err(|error| ApiError::field("scopes", error))?;
    let name = TokenName::new(create.name.unwrap_or_default())?;
    let minted = app.control.mint_token(&caller.0, NewToken { scopes, name }).await?;
    let shown = view(minted.record);
    let token = wire::NewToken {
        id: shown.id,
        token: minted.token.expose().to_owned(),
        scopes: shown.scopes,
        name: shown.name,
        created_at: shown.created_at,
    };
    Ok((StatusCode::CREATED, Json(token)))
}

/// List tokens
#[utoipa::path(
    get, path = "/v1/tokens", tag = "tokens",
    security(("token" = ["admin"])),
    responses((status = 200, description = "The tokens, without their texts", body = [wire::Token]))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Authenticated,
) -> Result<Json<Vec<wire::Token>>, ApiError> {
    let tokens = app.control.list_tokens(&caller.0).await?;
    Ok(Json(tokens.into_iter().map(view).collect()))
}

/// Revoke a token
///
/// It stops working at once. Revoking one twice succeeds.
#[utoipa::path(
    delete, path = "/v1/tokens/{id}", tag = "tokens",
    security(("token" = ["admin"])),
    params(("id" = String, Path)),
    responses(
        (status = 204, description = "It does not work any more"),
        (status = 404, description = "`not_found`", body = api::problem::Problem),
    )
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Authenticated,
    input::Id(id): input::Id<TokenId>,
) -> Result<StatusCode, ApiError> {
    app.control.revoke_token(&caller.0, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn view(record: TokenRecord) -> wire::Token {
    wire::Token {
        id: record.id,
        scopes: record.scopes.as_slice().iter().map(ToString::to_string).collect(),
        name: Some(record.name).filter(|name| !name.is_empty()),
        created_at: Time(record.created),
        revoked_at: record.revoked.map(Time),
    }
}
