//! An error as the server writes it: `application/problem+json` (RFC 9457).

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The content type of a [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

/// Why a request was not carried out.
///
/// `code` never changes its meaning and is what a program compares; `detail` is
/// a sentence for a person and may change at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A reference for the code; `about:blank` when the code says it all.
    #[serde(rename = "type", default = "blank")]
    #[schema(example = "about:blank")]
    pub kind: String,
    /// The HTTP status in words.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What a program acts on.
    #[schema(example = "not_found")]
    pub code: String,
    /// What a person reads.
    pub detail: String,
}

fn blank() -> String {
    "about:blank".to_owned()
}

impl Problem {
    /// Makes a problem; the title follows from the status.
    pub fn new(status: http::StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: blank(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S69, U31
    #[test]
    fn code_and_detail_are_always_present() {
        let problem = Problem::new(http::StatusCode::NOT_FOUND, "not_found", "no such sandbox");
        assert_eq!(
            serde_json::to_string(&problem).unwrap(),
            r#"{"type":"about:blank","title":"Not Found","status":404,"code":"not_found","detail":"no such sandbox"}"#
        );
    }
}
