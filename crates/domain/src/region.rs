//! Where data may live.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The name of a region, such as `eu` or `local`.
///
/// Every stored object has one; placing or copying across regions is refused
/// (U20). At most 32 characters: lower-case letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Region(String);

impl Region {
    /// The region of an installation that names none.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is not a region name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a region: use 1 to 32 characters a-z, 0-9 or -")]
pub struct InvalidRegion;

impl FromStr for Region {
    type Err = InvalidRegion;

    fn from_str(raw: &str) -> Result<Self, InvalidRegion> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if raw.is_empty() || raw.len() > 32 || !raw.chars().all(allowed) {
            return Err(InvalidRegion);
        }
        Ok(Self(raw.to_owned()))
    }
}

impl TryFrom<String> for Region {
    type Error = InvalidRegion;

    fn try_from(raw: String) -> Result<Self, InvalidRegion> {
        raw.parse()
    }
}

impl From<Region> for String {
    fn from(region: Region) -> Self {
        region.0
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
