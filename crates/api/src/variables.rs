//! Environment variables on the wire: they travel, and they do not print.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Variables by name. `Debug` shows the names only (U16, S29), so a request
/// that is logged whole by mistake gives nothing away.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Variables(pub BTreeMap<String, String>);

impl Variables {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U16, S29
    #[test]
    fn values_do_not_print() {
        let variables: Variables = serde_json::from_str(r#"{"KEY":"hunter2"}"#).unwrap();
        assert_eq!(format!("{variables:?}"), r#"{"KEY"}"#);
    }
}
