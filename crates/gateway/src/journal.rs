//! What is kept of every decision.
//!
//! One [`Record`] for each: who, whereto, by which rule, what came of it. Never a
//! header, a body, a path or a query. Its texts are bounded and printable by
//! construction, so a sandbox can neither forge a second record nor move a
//! cursor with one (L-01).

mod paced;

use domain::{
    host::Host,
    id::{SandboxId, SessionId},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

pub use self::paced::Paced;
use crate::decide::Front;

/// The longest text in a record.
const MAX_TEXT: usize = 300;

/// A text that is short and has only printable ASCII in it; other characters
/// are written as escapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Text(String);

/// One decision, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it was decided.
    pub time: Timestamp,
    /// Which sandbox asked, by its link.
    pub sandbox: SandboxId,
    /// Which session, by the account.
    pub session: Option<SessionId>,
    /// The account, as the relay found it.
    pub uid: Option<u32>,
    /// Where it came in.
    pub front: Front,
    /// The canonical destination; what was asked for where it has none.
    pub destination: Text,
    /// The rule that decided.
    pub rule: Text,
    /// `allowed`, or the code of the refusal.
    pub outcome: Text,
    /// Bytes from the sandbox.
    pub bytes_out: u64,
    /// Bytes to the sandbox.
    pub bytes_in: u64,
    /// From the decision to the end, in milliseconds.
    pub duration_ms: u64,
    /// How many records of this sandbox were dropped since its last one, because
    /// there were too many.
    pub dropped: u64,
}

/// Where records go. Never waits: who cannot keep up drops and counts.
pub trait Journal: Send + Sync {
    /// Keeps a record.
    fn record(&self, record: Record);
}

impl Text {
    /// The canonical destination.
    pub fn destination(host: &Host, port: u16) -> Self {
        Self(format!("{host}:{port}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(raw: &str) -> Self {
        let mut text = String::new();
        for character in raw.chars() {
            let before = text.len();
            match character {
                '\\' => text.push_str("\\\\"),
                ' '..='~' => text.push(character),
                other => text.extend(other.escape_default()),
            }
            if text.len() > MAX_TEXT {
                text.truncate(before);
                text.push_str("...");
                break;
            }
        }
        Self(text)
    }
}

impl From<String> for Text {
    /// Reads what was written; a text that is one already stays as it is.
    fn from(raw: String) -> Self {
        let whole = raw.len() <= MAX_TEXT + 3 && raw.bytes().all(|b| (b' '..=b'~').contains(&b));
        if whole { Self(raw) } else { raw.as_str().into() }
    }
}

#[cfg(test)]
mod tests;
