//! The first rows of an installation, written together or not at all.

use domain::{region::Region, time::Timestamp, token::TokenHash};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    organizations::{self, Organization},
    sql::{Transaction, values},
    tokens::{self, TokenRecord},
    users::{self, User},
};

/// What a fresh installation begins with.
#[derive(Clone, Debug)]
pub struct FirstRows {
    /// The default organisation.
    pub organization: Organization,
    /// Its administrator.
    pub administrator: User,
    /// The first tokens.
    pub tokens: Vec<(TokenRecord, TokenHash)>,
    /// What the audit log begins with.
    pub lines: Vec<AuditLine>,
}

/// A fresh installation that is not yet committed.
///
/// Whoever holds it can keep the texts of the first tokens before they become
/// valid, so that no crash leaves an installation that nobody can open. Dropped,
/// it leaves the database as it was.
#[derive(Debug)]
pub struct Fresh(Begun);

struct Begun(Transaction);

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Begun")
    }
}

impl Store {
    /// Writes the first rows, or returns `None` where there are some already.
    ///
    /// An installation belongs to one region for ever (U20): another one is
    /// refused.
    pub async fn bootstrap(
        &self,
        region: &Region,
        now: Timestamp,
        rows: &FirstRows,
    ) -> Result<Option<Fresh>, StoreError> {
        if self.belongs_to(region).await? {
            return Ok(None);
        }
        let mut tx = self.begin().await?;
        let inserted = tx
            .execute(
                "INSERT INTO installation (only_row, region, created) VALUES (1, $1, $2) \
                 ON CONFLICT (only_row) DO NOTHING",
                values![region.as_str(), now],
            )
            .await?;
        if inserted == 0 {
            // Another process was quicker.
            drop(tx);
            self.belongs_to(region).await?;
            return Ok(None);
        }
        organizations::insert(&mut tx, &rows.organization).await?;
        users::insert(&mut tx, &rows.administrator).await?;
        for (record, hash) in &rows.tokens {
            tokens::insert(&mut tx, record, hash).await?;
        }
        for line in &rows.lines {
            audit::append(&mut tx, line).await?;
        }
        Ok(Some(Fresh(Begun(tx))))
    }

    /// Whether there is an installation, which then is in `region`.
    async fn belongs_to(&self, region: &Region) -> Result<bool, StoreError> {
        let Some(row) = self.fetch_optional("SELECT region FROM installation", Vec::new()).await?
        else {
            return Ok(false);
        };
        let found: Region = row.parsed("region")?;
        if found != *region {
            return Err(StoreError::Region { found, expected: region.clone() });
        }
        Ok(true)
    }
}

impl Fresh {
    /// Makes the installation exist.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.0.0.commit().await
    }
}
