//! The first start of an installation.
//!
//! Makes the default organisation, its administrator and two tokens: one with
//! `admin`, one with both sandbox scopes, because no token holds both kinds
//! (U14). Their texts are handed to the caller before they become valid, so a
//! crash leaves either nothing, or an installation whose tokens somebody has.

use std::io;

use domain::{
    id::{AuditId, OrganizationId, TokenId, UserId},
    region::Region,
    scope::{Scope, Scopes},
    token::Token,
};
use sandbox::host::Sources;
use store::{
    Store,
    audit::{AuditLine, Outcome},
    bootstrap::FirstRows,
    organizations::Organization,
    tokens::TokenRecord,
    users::User,
};

use crate::{
    control::{detail, random},
    error::Error,
};

/// The texts of the first tokens. They are not kept.
#[derive(Clone, Debug)]
pub struct FirstTokens {
    /// Scope `admin`.
    pub admin: Token,
    /// Scopes `sandboxes:read` and `sandboxes:write`.
    pub sandboxes: Token,
}

/// Whether this was the first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootstrapped {
    /// It was.
    Now,
    /// The installation is older.
    Before,
}

/// Makes the installation, unless there is one.
///
/// `keep` stores the tokens where their owner finds them. If it fails, nothing
/// is made.
pub async fn bootstrap(
    store: &Store,
    region: &Region,
    sources: &Sources,
    keep: impl FnOnce(&FirstTokens) -> io::Result<()>,
) -> Result<Bootstrapped, Error> {
    let tokens = FirstTokens { admin: token(sources), sandboxes: token(sources) };
    let rows = first_rows(region, sources, &tokens)?;
    let Some(fresh) = store.bootstrap(region, (sources.clock)(), &rows).await? else {
        return Ok(Bootstrapped::Before);
    };
    keep(&tokens).map_err(|error| Error::Internal { source: Box::new(error) })?;
    fresh.commit().await?;
    Ok(Bootstrapped::Now)
}

fn first_rows(
    region: &Region,
    sources: &Sources,
    tokens: &FirstTokens,
) -> Result<FirstRows, Error> {
    let now = (sources.clock)();
    let organization = Organization {
        id: OrganizationId::from_random(random(sources)),
        name: "default".to_owned(),
        region: region.clone(),
        created: now,
    };
    let administrator = User {
        id: UserId::from_random(random(sources)),
        organization: organization.id.clone(),
        name: "admin".to_owned(),
        region: region.clone(),
        created: now,
    };
    let mut records = Vec::new();
    let mut lines = vec![AuditLine {
        id: AuditId::from_random(random(sources)),
        time: now,
        organization: organization.id.clone(),
        user: None,
        token: None,
        action: "installation.create".to_owned(),
        object: Some(organization.id.to_string()),
        outcome: Outcome::Observed,
        detail: detail([("region", region.as_str().into())]),
    }];
    for (token, name, scopes) in [
        (&tokens.admin, "first administrator", vec![Scope::Admin]),
        (&tokens.sandboxes, "first", vec![Scope::SandboxesRead, Scope::SandboxesWrite]),
    ] {
        let scopes =
            Scopes::new(scopes).map_err(|error| Error::Internal { source: Box::new(error) })?;
        let record = TokenRecord {
            id: TokenId::from_random(random(sources)),
            organization: organization.id.clone(),
            owner: administrator.id.clone(),
            region: region.clone(),
            scopes,
            name: name.to_owned(),
            created: now,
            revoked: None,
        };
        lines.push(AuditLine {
            id: AuditId::from_random(random(sources)),
            time: now,
            organization: organization.id.clone(),
            user: None,
            token: None,
            action: "token.mint".to_owned(),
            object: Some(record.id.to_string()),
            outcome: Outcome::Observed,
            detail: detail([("scopes", record.scopes.to_string().into())]),
        });
        records.push((record, token.hash()));
    }
    Ok(FirstRows { organization, administrator, tokens: records, lines })
}

fn token(sources: &Sources) -> Token {
    let mut bytes = [0; 32];
    (sources.random)(&mut bytes);
    Token::from_random(bytes)
}
