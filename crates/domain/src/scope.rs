//! What a token may do.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One permission of a token (U14).
///
/// Sandbox scopes and the administrator's scope are separate worlds: no token
/// holds both kinds, which [`Scopes::new`] enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// See sandboxes, read their files, read limits.
    #[serde(rename = "sandboxes:read")]
    SandboxesRead,
    /// Create, use and end sandboxes.
    #[serde(rename = "sandboxes:write")]
    SandboxesWrite,
    /// Mint and revoke tokens, read the audit log, manage images.
    #[serde(rename = "admin")]
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::SandboxesRead, Self::SandboxesWrite, Self::Admin];

    /// The word used on every surface.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SandboxesRead => "sandboxes:read",
            Self::SandboxesWrite => "sandboxes:write",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = InvalidScopes;

    fn from_str(raw: &str) -> Result<Self, InvalidScopes> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == raw)
            .ok_or_else(|| InvalidScopes::Unknown(raw.to_owned()))
    }
}

/// Why a set of scopes is not one a token may carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScopes {
    /// No such scope.
    #[error("{0:?} is not a scope; use sandboxes:read, sandboxes:write or admin")]
    Unknown(String),
    /// A token without scopes could do nothing.
    #[error("a token needs at least one scope")]
    Empty,
    /// Sandbox scopes and `admin` on one token.
    #[error("a token holds either sandbox scopes or admin, never both; make two tokens")]
    Mixed,
}

/// The scopes of one token: not empty, and never of both kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(Vec<Scope>);

impl Scopes {
    /// Checks and normalises (sorted, without repeats).
    pub fn new(mut scopes: Vec<Scope>) -> Result<Self, InvalidScopes> {
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(InvalidScopes::Empty);
        }
        if scopes.contains(&Scope::Admin) && scopes.len() > 1 {
            return Err(InvalidScopes::Mixed);
        }
        Ok(Self(scopes))
    }

    /// Whether `scope` is among them. Writing does not imply reading.
    pub fn contains(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// The scopes in a fixed order.
    pub fn as_slice(&self) -> &[Scope] {
        &self.0
    }
}

impl FromStr for Scopes {
    type Err = InvalidScopes;

    /// Reads a comma- or space-separated list.
    fn from_str(raw: &str) -> Result<Self, InvalidScopes> {
        let words = raw.split([',', ' ']).filter(|word| !word.is_empty());
        Self::new(words.map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            f.write_str(scope.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U14, S45
    #[test]
    fn no_token_combines_sandbox_and_admin_scopes() {
        assert_eq!("sandboxes:read,admin".parse::<Scopes>(), Err(InvalidScopes::Mixed));
        assert!("sandboxes:read,sandboxes:write".parse::<Scopes>().is_ok());
        assert_eq!("".parse::<Scopes>(), Err(InvalidScopes::Empty));
        assert!("sandboxes:*".parse::<Scopes>().is_err());
    }

    #[test]
    fn a_list_reads_back_as_itself() {
        let scopes: Scopes = "sandboxes:write sandboxes:read".parse().unwrap();
        assert_eq!(scopes.to_string(), "sandboxes:read,sandboxes:write");
        assert_eq!(scopes.to_string().parse(), Ok(scopes));
    }
}
