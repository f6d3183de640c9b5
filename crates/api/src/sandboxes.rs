//! Sandboxes on the wire.

use std::collections::BTreeMap;

use domain::id::{SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{time::Time, variables::Variables, volumes::Mount};

/// What to create. Only one of `template` and `snapshot` is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// What the sandbox starts from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(example = "base")]
    pub template: String,
    /// The snapshot it starts from instead, by name or id. It has its size too,
    /// so `size`, `cpus` and `memory_mb` are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// `small`, `medium` or `large`; `small` if absent. Excludes `cpus` and `memory_mb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "small")]
    pub size: Option<String>,
    /// Processors; needs `memory_mb` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u8>,
    /// Memory in MiB; needs `cpus` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// What the sandbox may reach: `off`, `brokered`, `restricted`, `mediated` or
    /// `open`; `off` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "off")]
    pub network: Option<String>,
    /// In `restricted`, what may be reached; the curated list if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["example.org", "preset:packages"]))]
    pub allow: Option<Vec<String>>,
    /// Seconds until the sandbox is ended, 10 to 3600; 300 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 300)]
    pub timeout_seconds: Option<u32>,
    /// What happens then: `terminate` or `pause`; `terminate` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "pause")]
    pub on_timeout: Option<String>,
    /// Pause it when nobody has used it for so many seconds, 5 to 3600. In use is
    /// a sandbox while a request to what is inside is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u32>,
    /// Whether the next exec, file or guest request resumes it when it is paused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub auto_resume: bool,
    /// Variables of every process. They are never shown again.
    #[serde(default, skip_serializing_if = "Variables::is_empty")]
    pub env: Variables,
    /// Labels of the caller's choice. They are shown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Volumes that the sandbox has from the beginning, at most two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Mount>,
    /// Where the sandbox may live; the installation's region if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its id.
    #[schema(value_type = String, example = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: SandboxId,
    /// `provisioning`, `running`, `sleeping`, `paused`, `terminated` or `failed`.
    #[schema(example = "running")]
    pub state: String,
    /// What it started from.
    pub template: String,
    /// Digest of the image behind the template.
    pub image_digest: String,
    /// Its size class, absent when processors and memory were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Processors.
    pub cpus: u8,
    /// Memory in MiB.
    pub memory_mb: u32,
    /// Writable disk in MiB; it lives in the memory.
    pub disk_mb: u32,
    /// What it may reach.
    pub network: String,
    /// In `restricted`, which destinations, as it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Where it lives.
    pub region: String,
    /// Labels of its owner.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// When it was asked for.
    pub created_at: Time,
    /// When its guest answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// When it will be ended, or paused where `on_timeout` says so; while it is
    /// paused, when it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// What happens at its time limit: `terminate` or `pause`.
    #[serde(default)]
    pub on_timeout: String,
    /// It is paused after so many seconds without use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// Whether its next use resumes it.
    #[serde(default)]
    pub auto_resume: bool,
    /// Since when it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Time>,
    /// What is left of its time while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<u64>,
    /// The snapshot that it was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub snapshot: Option<SnapshotId>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// Why a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ending {
    /// `requested`, `time_limit`, `start_failed`, `machine_exited`, `guest_lost` or
    /// `expired`.
    pub code: String,
    /// A sentence.
    pub detail: String,
}

/// A page of sandboxes, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxPage {
    /// The sandboxes.
    pub items: Vec<Sandbox>,
    /// What to pass as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which sandboxes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListSandboxes {
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The most items to return, 1 to 200; 50 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A new time limit, counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTimeout {
    /// Seconds, 10 to 3600.
    #[schema(example = 300)]
    pub timeout_seconds: u32,
}

/// How a paused sandbox is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Its new time limit in seconds, 10 to 3600; what was left of the old one if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

/// How a running sandbox is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// How many copies, 1 to 100; 1 if absent. All of them must fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 3)]
    pub count: Option<u32>,
    /// Their labels; those of the sandbox if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Their time limit in seconds, 10 to 3600; as long as the sandbox's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Variables that are added for processes started from now on.
    #[serde(default, skip_serializing_if = "Variables::is_empty")]
    pub env: Variables,
}

/// The copies of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Copies {
    /// One for each that was asked for; one that did not start says why.
    pub items: Vec<Sandbox>,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S65
    #[test]
    fn a_template_is_enough() {
        let create: CreateSandbox = serde_json::from_str(r#"{"template":"base"}"#).unwrap();
        assert_eq!(create, CreateSandbox { template: "base".into(), ..Default::default() });
        assert_eq!(serde_json::to_string(&create).unwrap(), r#"{"template":"base"}"#);
    }

    #[test]
    fn a_misspelt_field_is_an_error_that_names_it() {
        let error = serde_json::from_str::<CreateSandbox>(r#"{"template":"base","timeout":5}"#);
        assert!(error.unwrap_err().to_string().contains("`timeout`"));
    }

    #[test]
    fn an_answer_with_news_is_still_read() {
        let page: SandboxPage = serde_json::from_str(r#"{"items":[],"news":1}"#).unwrap();
        assert!(page.items.is_empty());
    }
}
