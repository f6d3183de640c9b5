//! What a caller can do about a "no".

use std::error::Error as StdError;

use domain::{
    ending::Ending, id::SandboxId, image::ImageName, isolation::IsolationClass, mode::EgressMode,
    scope::Scope,
};
use store::error::StoreError;

use crate::{admission::Counted, authority::Denied};

/// Why a use case did not do what it was asked.
///
/// The text of each is meant for the client; what only an operator needs is in
/// `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token is unknown or was revoked. Use another.
    #[error("the token is not valid")]
    Unauthenticated,
    /// A field of the request cannot be accepted. Change it.
    #[error("{field}: {detail}")]
    InvalidRequest {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The operator permits no such way out. Use another mode.
    #[error("network {:?} is not available here; `GET /v1/limits` says what is", .mode.as_str())]
    ModeUnavailable {
        /// What was asked for.
        mode: EgressMode,
    },
    /// Nothing is let out, because there is nobody to judge it.
    #[error("{detail}")]
    NoGateway {
        /// Why.
        detail: &'static str,
    },
    /// The image is there and does not verify. Its operator must look at it.
    #[error("image {name} was refused because it does not verify")]
    ImageRefused {
        /// Which one.
        name: ImageName,
        /// What does not hold.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The token lacks a scope. Use one that has it.
    #[error("this needs a token with scope {scope}")]
    Forbidden {
        /// Which one.
        scope: Scope,
    },
    /// There is no such object for this caller.
    #[error("there is no such {noun}")]
    NotFound {
        /// What was looked for.
        noun: &'static str,
    },
    /// The object is not in a state in which this can be done.
    #[error("{detail}")]
    Conflict {
        /// Which conflict.
        code: ConflictCode,
        /// What it is about.
        detail: String,
    },
    /// The organisation has as much as it may. End something, then try again.
    #[error("{in_use} of {limit} {of} are in use; end a sandbox and try again")]
    QuotaExceeded {
        /// Of what.
        of: Counted,
        /// How much it may have.
        limit: u64,
        /// How much it has.
        in_use: u64,
    },
    /// The host has no place for another sandbox now. Try again later, or ask for
    /// a smaller one.
    #[error("this host has no {of} left for another sandbox; try again later, or a smaller size")]
    HostFull {
        /// What it lacks.
        of: Counted,
    },
    /// There is no room for another volume. Delete one, then try again.
    #[error("{detail}")]
    VolumesFull {
        /// Which limit is in the way.
        detail: String,
    },
    /// The sandbox was recorded and did not come up. Its reason stays readable.
    #[error("sandbox {id} did not start: {ending}")]
    StartFailed {
        /// Which one.
        id: SandboxId,
        /// Why.
        ending: Ending,
    },
    /// A snapshot could not be made. The sandbox runs on.
    #[error("the sandbox could not be captured and runs on: {detail}")]
    CaptureFailed {
        /// Why.
        detail: String,
    },
    /// A sandbox could not be resumed. It is still paused.
    #[error(
        "the sandbox could not be resumed and is still paused: {detail}; try again, or create a \
         new one"
    )]
    ResumeFailed {
        /// Why.
        detail: String,
    },
    /// It was there and is not any more. Nothing brings it back.
    #[error("{detail}")]
    Gone {
        /// What became of it.
        detail: String,
    },
    /// The organisation keeps as much as it may. Remove something, then try again.
    #[error("{in_use} of {limit} {what} are kept; remove one and try again")]
    KeptExceeded {
        /// What is counted.
        what: &'static str,
        /// How many it may have.
        limit: u32,
        /// How many it has.
        in_use: u32,
    },
    /// A template was not built. Nothing of it is left but the steps that were
    /// done.
    #[error("{}", told(*.line, .detail))]
    BuildFailed {
        /// Where in its description.
        line: Option<usize>,
        /// Why.
        detail: String,
    },
    /// Something that is needed does not answer now. Try again later.
    #[error("{detail}")]
    Unavailable {
        /// What.
        detail: &'static str,
        /// Why.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// The backend separates sandboxes less than this installation demands.
    #[error("sandboxes here would be of class {given:?}, this installation demands {demanded:?}")]
    Isolation {
        /// What the backend gives.
        given: IsolationClass,
        /// What the settings demand.
        demanded: IsolationClass,
    },
    /// A fault of ours.
    #[error("something failed on our side")]
    Internal {
        /// What.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// The conflicts that a program can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictCode {
    /// The sandbox is not running: not yet, or not any more.
    SandboxNotRunning,
    /// The idempotency key was used for another request.
    IdempotencyKeyReused,
    /// Somebody else changed it meanwhile.
    Changed,
    /// The account has a session already.
    SessionExists,
    /// The sandbox has as many sessions as it may.
    TooManySessions,
    /// A sandbox has the volume.
    VolumeAttached,
    /// Something inside uses the volume, or it is being attached or detached.
    VolumeBusy,
    /// The sandbox could not mount it.
    VolumeRefused,
    /// It is being made or deleted, or could not be made.
    VolumeNotReady,
    /// The sandbox has as many volumes as a machine has slots.
    TooManyVolumes,
    /// What the object store holds is not what was stored.
    CheckpointDamaged,
    /// Another object has that name.
    NameTaken,
    /// The sandbox is paused, and is not resumed by using it.
    SandboxPaused,
    /// Something else is being done to the sandbox.
    SandboxBusy,
    /// The backend cannot capture a machine.
    PauseUnsupported,
    /// The snapshot cannot be loaded on this host, as it is now.
    SnapshotIncompatible,
    /// The snapshot's files are not on this host.
    SnapshotMissing,
    /// The snapshot is not whole yet.
    SnapshotNotReady,
    /// There is a snapshot of that name.
    SnapshotNameTaken,
    /// What the template was built on is not there any more.
    TemplateOutdated,
}

impl ConflictCode {
    /// The stable code.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SandboxNotRunning => "sandbox_not_running",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::Changed => "changed_meanwhile",
            Self::SessionExists => "session_exists",
            Self::TooManySessions => "too_many_sessions",
            Self::VolumeAttached => "volume_attached",
            Self::VolumeBusy => "volume_busy",
            Self::VolumeRefused => "volume_refused",
            Self::VolumeNotReady => "volume_not_ready",
            Self::TooManyVolumes => "too_many_volumes",
            Self::CheckpointDamaged => "checkpoint_damaged",
            Self::NameTaken => "name_taken",
            Self::SandboxPaused => "sandbox_paused",
            Self::SandboxBusy => "sandbox_busy",
            Self::PauseUnsupported => "pause_unsupported",
            Self::SnapshotIncompatible => "snapshot_incompatible",
            Self::SnapshotMissing => "snapshot_missing",
            Self::SnapshotNotReady => "snapshot_not_ready",
            Self::SnapshotNameTaken => "snapshot_name_taken",
            Self::TemplateOutdated => "template_outdated",
        }
    }
}

impl Error {
    /// The stable code, for programs and for the audit log.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::InvalidRequest { .. } => "invalid_request",
            Self::ModeUnavailable { .. } => "mode_unavailable",
            Self::NoGateway { .. } => "gateway_unavailable",
            Self::ImageRefused { .. } => "image_refused",
            Self::Forbidden { .. } => "missing_scope",
            Self::NotFound { .. } => "not_found",
            Self::Conflict { code, .. } => code.as_str(),
            Self::QuotaExceeded { .. } => "quota_exceeded",
            Self::VolumesFull { .. } => "quota_exceeded",
            Self::HostFull { .. } => "host_full",
            Self::StartFailed { .. } => "start_failed",
            Self::CaptureFailed { .. } => "snapshot_failed",
            Self::ResumeFailed { .. } => "resume_failed",
            Self::Gone { .. } => "snapshot_expired",
            Self::KeptExceeded { .. } => "quota_exceeded",
            Self::BuildFailed { .. } => "build_failed",
            Self::Unavailable { .. } => "unavailable",
            Self::Isolation { .. } => "isolation_too_weak",
            Self::Internal { .. } => "internal_error",
        }
    }

    pub(crate) fn invalid(field: &'static str, detail: impl ToString) -> Self {
        Self::InvalidRequest { field, detail: detail.to_string() }
    }

    pub(crate) fn conflict(code: ConflictCode, detail: impl Into<String>) -> Self {
        Self::Conflict { code, detail: detail.into() }
    }

    /// The same for somebody else who waited for it. The cause, which only an
    /// operator needs, stays with the first.
    pub(crate) fn shared(&self) -> Self {
        match self {
            Self::Conflict { code, detail } => {
                Self::Conflict { code: *code, detail: detail.clone() }
            }
            Self::CaptureFailed { detail } => Self::CaptureFailed { detail: detail.clone() },
            Self::ResumeFailed { detail } => Self::ResumeFailed { detail: detail.clone() },
            Self::Gone { detail } => Self::Gone { detail: detail.clone() },
            Self::NotFound { noun } => Self::NotFound { noun },
            Self::QuotaExceeded { of, limit, in_use } => {
                Self::QuotaExceeded { of: *of, limit: *limit, in_use: *in_use }
            }
            Self::HostFull { of } => Self::HostFull { of: *of },
            Self::KeptExceeded { what, limit, in_use } => {
                Self::KeptExceeded { what, limit: *limit, in_use: *in_use }
            }
            Self::StartFailed { id, ending } => {
                Self::StartFailed { id: id.clone(), ending: ending.clone() }
            }
            _ => Self::Unavailable {
                detail: "what was under way did not succeed; look at the sandbox and try again",
                source: None,
            },
        }
    }

    /// As many sandboxes run as may.
    pub(crate) fn no_more_sandboxes(limit: u32, in_use: u32) -> Self {
        let of = Counted::Sandboxes;
        Self::QuotaExceeded { of, limit: limit.into(), in_use: in_use.into() }
    }

    pub(crate) fn not_running(detail: impl Into<String>) -> Self {
        Self::Conflict { code: ConflictCode::SandboxNotRunning, detail: detail.into() }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::Unavailable {
                detail: "the database does not answer; try again",
                source: Some(Box::new(error)),
            },
            StoreError::Url(_)
            | StoreError::File(_)
            | StoreError::Migrate(_)
            | StoreError::Region { .. }
            | StoreError::Corrupt { .. }
            | StoreError::SealingKey { .. }
            | StoreError::Sealed(_)
            | StoreError::Statement(_) => Self::Internal { source: Box::new(error) },
        }
    }
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Scope(scope) => Self::Forbidden { scope },
            Denied::Unknown(noun) => Self::NotFound { noun },
        }
    }
}

/// An error with everything below it, in one line.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

fn told(line: Option<usize>, detail: &str) -> String {
    match line {
        Some(line) => format!("the template was not built: line {line}: {detail}"),
        None => format!("the template was not built: {detail}"),
    }
}
