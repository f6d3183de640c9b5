//! Environment variables that a caller gives to a sandbox.
//!
//! Names may be shown; values may not (U16, S28, S29). The type keeps them apart:
//! it has no `Serialize`, and its `Debug` prints names only, so a value cannot
//! reach a database, a log or an audit line by being part of something larger.

use std::{collections::BTreeMap, fmt};

use crate::secret::Secret;

/// The most variables one sandbox or process may be given.
pub const MAX_VARIABLES: usize = 256;
/// The longest value in bytes; Linux allows 128 KiB for one argument string.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;

/// Why a set of variables was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEnvironment {
    /// The name could not be set by a shell.
    #[error("{0:?} is not a variable name; use letters, digits and _, not starting with a digit")]
    Name(String),
    /// A value holds a NUL byte or is too long.
    #[error("the value of {0} is too long (64 KiB at most) or holds a NUL byte")]
    Value(String),
    /// Too many.
    #[error("at most {MAX_VARIABLES} variables")]
    Count,
}

/// Checked variables whose values do not print.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, Secret>);

impl Environment {
    /// Checks every name and value.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, InvalidEnvironment> {
        let mut checked = BTreeMap::new();
        for (name, value) in variables {
            let mut characters = name.chars();
            let first = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
            if !first || !characters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(InvalidEnvironment::Name(name));
            }
            if value.len() > MAX_VALUE_BYTES || value.contains('\0') {
                return Err(InvalidEnvironment::Value(name));
            }
            checked.insert(name, Secret::new(value));
        }
        if checked.len() > MAX_VARIABLES {
            return Err(InvalidEnvironment::Count);
        }
        Ok(Self(checked))
    }

    /// Names and values, for the one place that hands them to the guest.
    pub fn expose(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.expose()))
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S29, U16
    #[test]
    fn values_do_not_print() {
        let environment = Environment::new([("KEY".into(), "hunter2".into())]).unwrap();
        assert_eq!(format!("{environment:?}"), "{\"KEY\"}");
    }

    #[test]
    fn names_that_a_shell_would_refuse_are_refused() {
        for name in ["", "1A", "A-B", "A=B", "A B", "é"] {
            assert!(Environment::new([(name.into(), String::new())]).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_nul_byte_is_refused() {
        assert!(Environment::new([("A".into(), "a\0b".into())]).is_err());
    }
}
