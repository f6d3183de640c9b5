//! Organisations: the outermost owner of everything.

use domain::{id::OrganizationId, region::Region, time::Timestamp};

use crate::{
    Store,
    error::StoreError,
    sql::{Transaction, values},
};

/// An organisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Organization {
    /// Names it.
    pub id: OrganizationId,
    /// For people.
    pub name: String,
    /// Where its data lives.
    pub region: Region,
    /// Since when.
    pub created: Timestamp,
}

impl Store {
    /// Adds an organisation.
    pub async fn add_organization(&self, organization: &Organization) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        insert(&mut tx, organization).await?;
        tx.commit().await
    }

    /// Finds one.
    pub async fn organization(
        &self,
        id: &OrganizationId,
    ) -> Result<Option<Organization>, StoreError> {
        let row = self
            .fetch_optional(
                "SELECT id, name, region, created FROM organizations WHERE id = $1",
                values![id.as_str()],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Organization {
            id: row.parsed("id")?,
            name: row.text("name")?,
            region: row.parsed("region")?,
            created: Timestamp(row.integer("created")?),
        }))
    }
}

pub(crate) async fn insert(
    tx: &mut Transaction,
    organization: &Organization,
) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO organizations (id, name, region, created, generation) \
         VALUES ($1, $2, $3, $4, 0)",
        values![
            organization.id.as_str(),
            organization.name.as_str(),
            organization.region.as_str(),
            organization.created,
        ],
    )
    .await?;
    Ok(())
}
