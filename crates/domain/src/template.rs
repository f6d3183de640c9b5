//! The name of what a sandbox starts from.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub mod description;

/// A template name such as `base`: 1 to 64 characters, lower-case letters,
/// digits, `.`, `_` and `-`, beginning with a letter or digit.
///
/// It becomes part of a path, so nothing that a file system reads specially fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

impl TemplateName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is not a template name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a template name; use 1 to 64 characters a-z, 0-9, '.', '_' or '-'")]
pub struct InvalidTemplateName(pub String);

impl FromStr for TemplateName {
    type Err = InvalidTemplateName;

    fn from_str(raw: &str) -> Result<Self, InvalidTemplateName> {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = raw.len() <= 64
            && raw.chars().next().is_some_and(alphanumeric)
            && raw.chars().all(|c| alphanumeric(c) || matches!(c, '.' | '_' | '-'));
        if valid { Ok(Self(raw.to_owned())) } else { Err(InvalidTemplateName(raw.to_owned())) }
    }
}

impl TryFrom<String> for TemplateName {
    type Error = InvalidTemplateName;

    fn try_from(raw: String) -> Result<Self, InvalidTemplateName> {
        raw.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_path_reads_specially_is_a_name() {
        for raw in ["", ".", "..", "../base", "a/b", "Base", "-a", "a\n"] {
            assert!(raw.parse::<TemplateName>().is_err(), "{raw:?}");
        }
        assert!("python-3.12".parse::<TemplateName>().is_ok());
    }
}
