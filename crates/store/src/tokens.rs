//! Tokens: what is kept of them is their hash.

use domain::{
    id::{OrganizationId, TokenId, UserId},
    region::Region,
    scope::Scopes,
    time::Timestamp,
    token::TokenHash,
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sql::{Row, Transaction, values},
};

/// The most tokens that are listed.
const LISTED: u32 = 1000;

/// What may be shown of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Names the token.
    pub id: TokenId,
    /// The organisation it opens.
    pub organization: OrganizationId,
    /// In whose name it acts.
    pub owner: UserId,
    /// Where it may be used.
    pub region: Region,
    /// What it may do.
    pub scopes: Scopes,
    /// Its owner's note.
    pub name: String,
    /// Since when.
    pub created: Timestamp,
    /// Since when it opens nothing.
    pub revoked: Option<Timestamp>,
}

/// What revoking came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The token opens nothing from now on.
    Now,
    /// It was revoked before.
    Before,
    /// The organisation has no such token.
    Unknown,
}

impl Store {
    /// Adds a token and its audit line.
    pub async fn add_token(
        &self,
        record: &TokenRecord,
        hash: &TokenHash,
        line: &AuditLine,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        insert(&mut tx, record, hash).await?;
        audit::append(&mut tx, line).await?;
        tx.commit().await
    }

    /// Finds the token with this hash, revoked or not.
    pub async fn token_by_hash(&self, hash: &TokenHash) -> Result<Option<TokenRecord>, StoreError> {
        let row = self
            .fetch_optional(
                "SELECT id, organization, owner, region, hash, scopes, name, created, revoked \
                 FROM tokens WHERE hash = $1",
                values![hash.to_string()],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        // An index finds by prefix comparison; the last word is a comparison
        // whose time does not depend on the content.
        let stored = row.text("hash")?;
        match TokenHash::from_hex(&stored) {
            Some(stored) if stored.matches(hash) => read(&row).map(Some),
            Some(_) => Ok(None),
            None => Err(StoreError::Corrupt { column: "hash", value: "…".to_owned() }),
        }
    }

    /// Finds a token of an organisation.
    pub async fn token(
        &self,
        organization: &OrganizationId,
        id: &TokenId,
    ) -> Result<Option<TokenRecord>, StoreError> {
        let row = self
            .fetch_optional(
                "SELECT id, organization, owner, region, scopes, name, created, revoked \
                 FROM tokens WHERE organization = $1 AND id = $2",
                values![organization.as_str(), id.as_str()],
            )
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Lists the newest tokens of an organisation.
    pub async fn tokens(
        &self,
        organization: &OrganizationId,
    ) -> Result<Vec<TokenRecord>, StoreError> {
        let rows = self
            .fetch_all(
                "SELECT id, organization, owner, region, scopes, name, created, revoked \
                 FROM tokens WHERE organization = $1 ORDER BY created DESC, id DESC LIMIT $2",
                values![organization.as_str(), LISTED],
            )
            .await?;
        rows.iter().map(read).collect()
    }

    /// Revokes a token of an organisation. The line is written unless it is unknown.
    pub async fn revoke_token(
        &self,
        organization: &OrganizationId,
        id: &TokenId,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Revoked, StoreError> {
        let mut tx = self.begin().await?;
        let changed = tx
            .execute(
                "UPDATE tokens SET revoked = $3 \
                 WHERE organization = $1 AND id = $2 AND revoked IS NULL",
                values![organization.as_str(), id.as_str(), now],
            )
            .await?;
        let known = tx
            .fetch_optional(
                "SELECT id FROM tokens WHERE organization = $1 AND id = $2",
                values![organization.as_str(), id.as_str()],
            )
            .await?;
        let revoked = match (changed, known) {
            (0, None) => return Ok(Revoked::Unknown),
            (0, Some(_)) => Revoked::Before,
            _ => Revoked::Now,
        };
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(revoked)
    }
}

pub(crate) async fn insert(
    tx: &mut Transaction,
    record: &TokenRecord,
    hash: &TokenHash,
) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO tokens (id, organization, owner, region, hash, scopes, name, created) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        values![
            record.id.as_str(),
            record.organization.as_str(),
            record.owner.as_str(),
            record.region.as_str(),
            hash.to_string(),
            record.scopes.to_string(),
            record.name.as_str(),
            record.created,
        ],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<TokenRecord, StoreError> {
    Ok(TokenRecord {
        id: row.parsed("id")?,
        organization: row.parsed("organization")?,
        owner: row.parsed("owner")?,
        region: row.parsed("region")?,
        scopes: row.parsed("scopes")?,
        name: row.text("name")?,
        created: Timestamp(row.integer("created")?),
        revoked: row.optional_integer("revoked")?.map(Timestamp),
    })
}
