//! Sessions on the wire.

use domain::id::{SandboxId, SessionId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// A session to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Its account in the sandbox, 1000 to 65533.
    #[schema(example = 2000)]
    pub uid: u32,
    /// Whether somebody is there to be asked; no if absent.
    #[serde(default)]
    pub attended: bool,
}

/// A session: what its account sends is attributed to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id.
    #[schema(value_type = String)]
    pub id: SessionId,
    /// Where it works.
    #[schema(value_type = String)]
    pub sandbox: SandboxId,
    /// Its account there.
    pub uid: u32,
    /// Whether somebody is there to be asked.
    pub attended: bool,
    /// Who made it, by id.
    pub owner: String,
    /// When it was made.
    pub created_at: Time,
}
