//! API tokens on the wire.

use std::fmt;

use domain::id::TokenId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// A token to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// `sandboxes:read`, `sandboxes:write` or both; or `admin` alone.
    #[schema(example = json!(["sandboxes:read", "sandboxes:write"]))]
    pub scopes: Vec<String>,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A token that was just made. Its text is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// What names the token in lists and in the audit log.
    #[schema(value_type = String)]
    pub id: TokenId,
    /// The token itself.
    pub token: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it was made.
    pub created_at: Time,
}

impl fmt::Debug for NewToken {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken")
            .field("id", &self.id)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// A token in a list; its text is not kept anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TokenId,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When it was taken out of use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
}
