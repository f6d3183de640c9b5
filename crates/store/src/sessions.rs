//! Sessions: pieces of work in a sandbox, each with an account of its own inside.

use domain::{
    id::{OrganizationId, SandboxId, SessionId, UserId},
    region::Region,
    time::Timestamp,
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sandboxes::Moved,
    sql::{Row, values},
};

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Names it.
    pub id: SessionId,
    /// Where it works.
    pub sandbox: SandboxId,
    /// Whose it is.
    pub organization: OrganizationId,
    /// Who made it.
    pub owner: UserId,
    /// Where its data stays.
    pub region: Region,
    /// Its account inside.
    pub uid: u32,
    /// Whether somebody is there to be asked.
    pub attended: bool,
    /// When it was made.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// What adding a session came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAdded {
    /// It is on record.
    Yes,
    /// The account has a session already.
    Taken,
    /// The sandbox has as many as it may.
    Full,
    /// The sandbox is not there any more.
    Gone,
}

impl Store {
    /// Adds a session to a live sandbox that has fewer than `most`, and counts the
    /// generation of its rules up.
    pub async fn add_session(
        &self,
        session: &Session,
        most: u32,
        line: &AuditLine,
    ) -> Result<SessionAdded, StoreError> {
        let mut tx = self.begin().await?;
        // Also the lock under which sessions of one sandbox are counted.
        let live = tx.execute(TOUCH, values![session.sandbox.as_str()]).await?;
        if live == 0 {
            return Ok(SessionAdded::Gone);
        }
        let row = tx.fetch_optional(COUNT, values![session.sandbox.as_str()]).await?;
        let live: u32 = row.map(|row| row.number("live")).transpose()?.unwrap_or(0);
        if live >= most {
            return Ok(SessionAdded::Full);
        }
        let added = tx
            .execute(
                "INSERT INTO sessions (id, sandbox, organization, owner, region, uid, attended, \
                 created) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
                 ON CONFLICT (sandbox, uid) WHERE ended IS NULL DO NOTHING",
                values![
                    session.id.as_str(),
                    session.sandbox.as_str(),
                    session.organization.as_str(),
                    session.owner.as_str(),
                    session.region.as_str(),
                    session.uid,
                    u32::from(session.attended),
                    session.created,
                ],
            )
            .await?;
        if added == 0 {
            return Ok(SessionAdded::Taken);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(SessionAdded::Yes)
    }

    /// The sessions of a sandbox that have not ended, oldest first.
    pub async fn sessions(&self, sandbox: &SandboxId) -> Result<Vec<Session>, StoreError> {
        const LIST: &str = "SELECT id, sandbox, organization, owner, region, uid, attended, \
                            created, ended FROM sessions WHERE sandbox = $1 AND ended IS NULL \
                            ORDER BY created, id";
        let rows = self.fetch_all(LIST, values![sandbox.as_str()]).await?;
        rows.iter().map(read).collect()
    }

    /// Ends a session of a sandbox, and counts the generation of its rules up.
    pub async fn end_session(
        &self,
        sandbox: &SandboxId,
        id: &SessionId,
        now: Timestamp,
        line: &AuditLine,
    ) -> Result<Moved, StoreError> {
        let mut tx = self.begin().await?;
        tx.execute(TOUCH, values![sandbox.as_str()]).await?;
        let ended = tx
            .execute(
                "UPDATE sessions SET ended = $3 WHERE id = $2 AND sandbox = $1 AND ended IS NULL",
                values![sandbox.as_str(), id.as_str(), now],
            )
            .await?;
        if ended == 0 {
            return Ok(Moved::No);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(Moved::Yes)
    }
}

const TOUCH: &str = "UPDATE sandboxes SET egress_generation = egress_generation + 1 \
                     WHERE id = $1 AND intent IS NULL \
                     AND phase IN ('provisioning', 'running', 'sleeping', 'paused')";
const COUNT: &str = "SELECT COUNT(*) AS live FROM sessions WHERE sandbox = $1 AND ended IS NULL";

fn read(row: &Row) -> Result<Session, StoreError> {
    Ok(Session {
        id: row.parsed("id")?,
        sandbox: row.parsed("sandbox")?,
        organization: row.parsed("organization")?,
        owner: row.parsed("owner")?,
        region: row.parsed("region")?,
        uid: row.number("uid")?,
        attended: row.integer("attended")? != 0,
        created: Timestamp(row.integer("created")?),
        ended: row.optional_integer("ended")?.map(Timestamp),
    })
}
