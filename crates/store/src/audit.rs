//! The audit log: who did what to which object, and whether it was allowed.
//!
//! Lines are added and never changed or removed; the database itself refuses
//! both. A line holds metadata: names, counts, sizes, paths. It has no field for
//! contents, arguments or values of variables (S44, S92).

use domain::{
    id::{AuditId, OrganizationId, TokenId, UserId},
    time::Timestamp,
};
use serde_json::{Map, Value as Json};

use crate::{
    Store,
    error::StoreError,
    sql::{Row, Transaction, values},
};

/// What was decided about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was allowed, and this line was written before it was done.
    Allowed,
    /// It was refused; the detail holds the code.
    Refused,
    /// Nobody asked: this happened, and the system wrote it down.
    Observed,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditLine {
    /// Names the line.
    pub id: AuditId,
    /// When it was decided.
    pub time: Timestamp,
    /// Whose log it belongs to.
    pub organization: OrganizationId,
    /// Who asked, if anybody did.
    pub user: Option<UserId>,
    /// With which token.
    pub token: Option<TokenId>,
    /// What, such as `sandbox.create`.
    pub action: String,
    /// To which object; an id, or a name where the noun has no ids.
    pub object: Option<String>,
    /// What came of it.
    pub outcome: Outcome,
    /// Metadata, different for each action.
    pub detail: Map<String, Json>,
}

/// Which lines to read, newest first.
#[derive(Clone, Debug)]
pub struct AuditFilter {
    /// Whose log.
    pub organization: OrganizationId,
    /// Only lines about this object.
    pub object: Option<String>,
    /// At most so many.
    pub limit: u32,
    /// Only lines older than the one with this number.
    pub before: Option<i64>,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Allowed, Self::Refused, Self::Observed];

    /// The word used on every surface and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Observed => "observed",
        }
    }
}

impl Store {
    /// Adds a line that stands alone.
    pub async fn append_audit(&self, line: &AuditLine) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        append(&mut tx, line).await?;
        tx.commit().await
    }

    /// Reads lines with their numbers, newest first.
    pub async fn audit_lines(
        &self,
        filter: &AuditFilter,
    ) -> Result<Vec<(i64, AuditLine)>, StoreError> {
        let rows = self
            .fetch_all(
                "SELECT sequence, id, time, organization, actor, token, action, object, outcome, \
                 detail FROM audit \
                 WHERE organization = $1 AND ($2 = '' OR object = $2) AND sequence < $3 \
                 ORDER BY sequence DESC LIMIT $4",
                values![
                    filter.organization.as_str(),
                    filter.object.as_deref().unwrap_or_default(),
                    filter.before.unwrap_or(i64::MAX),
                    filter.limit,
                ],
            )
            .await?;
        rows.iter().map(|row| Ok((row.integer("sequence")?, read(row)?))).collect()
    }
}

/// Adds a line to the transaction of the change it is about.
pub(crate) async fn append(tx: &mut Transaction, line: &AuditLine) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO audit \
         (id, time, organization, actor, token, action, object, outcome, detail) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        values![
            line.id.as_str(),
            line.time,
            line.organization.as_str(),
            line.user.as_ref().map(UserId::as_str),
            line.token.as_ref().map(TokenId::as_str),
            line.action.as_str(),
            line.object.as_deref(),
            line.outcome.as_str(),
            Json::Object(line.detail.clone()).to_string(),
        ],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<AuditLine, StoreError> {
    let outcome = row.text("outcome")?;
    let detail = row.text("detail")?;
    Ok(AuditLine {
        id: row.parsed("id")?,
        time: Timestamp(row.integer("time")?),
        organization: row.parsed("organization")?,
        user: row.optional_parsed("actor")?,
        token: row.optional_parsed("token")?,
        action: row.text("action")?,
        object: row.optional_text("object")?,
        outcome: Outcome::ALL
            .into_iter()
            .find(|known| known.as_str() == outcome)
            .ok_or(StoreError::Corrupt { column: "outcome", value: outcome })?,
        detail: serde_json::from_str(&detail)
            .map_err(|_| StoreError::Corrupt { column: "detail", value: detail })?,
    })
}

#[cfg(test)]
mod tests {
    use testkit::{fixtures::distinct_bytes, postgres::Postgres};

    use super::*;

    /// The database itself refuses, whoever asks.
    async fn check(store: Store) {
        let line = AuditLine {
            id: AuditId::from_random(distinct_bytes()),
            time: Timestamp(1),
            organization: OrganizationId::from_random(distinct_bytes()),
            user: None,
            token: None,
            action: "sandbox.get".to_owned(),
            object: None,
            outcome: Outcome::Allowed,
            detail: Map::new(),
        };
        store.append_audit(&line).await.expect("written");
        for sql in ["UPDATE audit SET action = 'x'", "DELETE FROM audit"] {
            let mut tx = store.begin().await.expect("begun");
            let error = tx.execute(sql, Vec::new()).await.expect_err("it is refused");
            let cause = std::error::Error::source(&error).expect("a cause").to_string();
            assert!(cause.contains("append-only"), "{cause}");
        }
        let filter = AuditFilter {
            organization: line.organization.clone(),
            object: None,
            limit: 10,
            before: None,
        };
        assert_eq!(store.audit_lines(&filter).await.expect("read").len(), 1);
        store.close().await;
    }

    #[tokio::test]
    async fn lines_are_neither_changed_nor_removed() {
        check(Store::open("sqlite::memory:").await.expect("it opens")).await;
        if let Some(server) = Postgres::start() {
            check(Store::open(&server.database()).await.expect("it opens")).await;
        }
    }
}
