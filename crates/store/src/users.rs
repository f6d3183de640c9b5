//! Users: in whose name requests run.

use domain::{
    id::{OrganizationId, UserId},
    region::Region,
    time::Timestamp,
};

use crate::{
    Store,
    error::StoreError,
    sql::{Transaction, values},
};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Names the user.
    pub id: UserId,
    /// The organisation they belong to.
    pub organization: OrganizationId,
    /// For people; no other user of the organisation has it.
    pub name: String,
    /// Where their data lives.
    pub region: Region,
    /// Since when.
    pub created: Timestamp,
}

impl Store {
    /// Adds a user.
    pub async fn add_user(&self, user: &User) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        insert(&mut tx, user).await?;
        tx.commit().await
    }

    /// Finds one.
    pub async fn user(&self, id: &UserId) -> Result<Option<User>, StoreError> {
        let row = self
            .fetch_optional(
                "SELECT id, organization, name, region, created FROM users WHERE id = $1",
                values![id.as_str()],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(User {
            id: row.parsed("id")?,
            organization: row.parsed("organization")?,
            name: row.text("name")?,
            region: row.parsed("region")?,
            created: Timestamp(row.integer("created")?),
        }))
    }
}

pub(crate) async fn insert(tx: &mut Transaction, user: &User) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO users (id, organization, name, region, created) VALUES ($1, $2, $3, $4, $5)",
        values![
            user.id.as_str(),
            user.organization.as_str(),
            user.name.as_str(),
            user.region.as_str(),
            user.created,
        ],
    )
    .await?;
    Ok(())
}
