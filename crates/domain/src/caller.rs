//! Who asks.
//!
//! Every use case takes a [`Caller`]: there is no ambient user. It is made in
//! one place, where a credential was checked, and carries only what decisions
//! need.

use crate::{
    id::{OrganizationId, TokenId, UserId},
    scope::{Scope, Scopes},
};

/// The authenticated origin of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The organisation whose objects this caller can see.
    pub organization: OrganizationId,
    /// The user in whose name the request runs.
    pub user: UserId,
    /// The token that authenticated it.
    pub token: TokenId,
    /// What that token may do.
    pub scopes: Scopes,
}

impl Caller {
    /// Whether this caller holds `scope`.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(scope)
    }
}
