//! What sandboxes may reach, on the wire.

use domain::id::{SandboxId, SessionId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

/// What a sandbox is to reach from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetEgress {
    /// `off`, `brokered`, `restricted`, `mediated` or `open`.
    #[schema(example = "restricted")]
    pub network: String,
    /// In `restricted`, what may be reached: entries such as `example.org`,
    /// `*.example.org:8443` or `http://example.org`, and presets such as
    /// `preset:packages`. The curated list if absent; nothing if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
}

/// One decision of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressLine {
    /// When.
    pub at: Time,
    /// Which sandbox asked.
    #[schema(value_type = String)]
    pub sandbox: SandboxId,
    /// Which of its sessions; absent for the sandbox as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub session: Option<SessionId>,
    /// The account that asked, as its relay found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Where it came in: `named`, `proxy`, `captured`, `dns` or `udp`.
    pub front: String,
    /// Whereto, in canonical form.
    #[schema(example = "example.org:443")]
    pub destination: String,
    /// The rule that decided.
    #[schema(example = "allow example.org")]
    pub rule: String,
    /// `allowed`, or the code of the refusal.
    #[schema(example = "allowed")]
    pub outcome: String,
    /// Bytes from the sandbox.
    pub bytes_out: u64,
    /// Bytes to the sandbox.
    pub bytes_in: u64,
    /// From the decision to the end.
    pub duration_ms: u64,
    /// How many lines of this sandbox were left out before this one, because
    /// there were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A page of decisions, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressPage {
    /// The lines.
    pub items: Vec<EgressLine>,
    /// What to pass as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which decisions to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListEgress {
    /// Only those of this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// The most lines to return, 1 to 200; 50 if absent. When following, how many
    /// of those that are there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// `true` to be sent lines as they are written, oldest first, one JSON object
    /// a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
}

/// A question about what would happen. Nothing is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainEgress {
    /// Whereto; its path plays no part.
    #[schema(example = "https://example.org/")]
    pub url: String,
    /// Under the rules of this sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// For this account of the sandbox; the ordinary one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Without `sandbox`: under the rules that a new one of this mode would have;
    /// `restricted` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Without `sandbox`: with this list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
}

/// What would happen, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressExplanation {
    /// `allowed`, or the code of the refusal. For a name, `allowed` still depends
    /// on its addresses, which are looked up when a connection is made.
    #[schema(example = "policy_denied")]
    pub outcome: String,
    /// A sentence.
    pub detail: String,
    /// The rule that would decide.
    pub rule: String,
    /// Whereto, in canonical form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// The steps of the decision, up to the one that decides.
    pub steps: Vec<EgressStep>,
}

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressStep {
    /// What is asked: `session`, `destination`, `rule` or `address`.
    pub question: String,
    /// What comes out of it.
    pub answer: String,
}
