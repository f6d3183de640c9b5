//! Who may do what, as a function.
//!
//! [`may`] is asked by every use case before it does anything. It reads nothing
//! and waits for nothing: what it needs to know is passed in.
//!
//! The scope is judged before the object. So a token without the scope gets the
//! same answer for every id, and a token with it gets the same answer for an id
//! of another organisation as for an id of nothing (S70).

use domain::{
    caller::Caller,
    id::OrganizationId,
    scope::Scope::{self, Admin, SandboxesRead, SandboxesWrite},
};

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make a sandbox.
    SandboxCreate,
    /// See one.
    SandboxGet,
    /// See those of the organisation.
    SandboxList,
    /// End one.
    SandboxTerminate,
    /// Move its time limit.
    SandboxSetTimeout,
    /// Keep it and remove its machine.
    SandboxPause,
    /// Bring it back.
    SandboxResume,
    /// Make copies of it.
    SandboxFork,
    /// Keep what it is under a name.
    SnapshotCreate,
    /// See the snapshots.
    SnapshotList,
    /// See one.
    SnapshotGet,
    /// Remove one.
    SnapshotDelete,
    /// Read the output of its console.
    SandboxConsole,
    /// Start a process inside.
    ProcessStart,
    /// Use a process that runs inside: its input, output, signals.
    ProcessUse,
    /// See which processes run inside.
    ProcessList,
    /// Read a file inside.
    FileRead,
    /// Write one.
    FileWrite,
    /// Remove one.
    FileRemove,
    /// Move one.
    FileMove,
    /// Make a directory inside.
    DirectoryMake,
    /// See what files there are and how they change.
    FileLook,
    /// See whether the guest is well.
    GuestLook,
    /// See the limits.
    LimitsGet,
    /// See the images.
    ImageList,
    /// See one.
    ImageGet,
    /// Make a volume, empty or from a checkpoint.
    VolumeCreate,
    /// See a volume.
    VolumeGet,
    /// See the volumes.
    VolumeList,
    /// Delete a volume with its checkpoints.
    VolumeDelete,
    /// Attach a volume to a sandbox.
    VolumeAttach,
    /// Detach one.
    VolumeDetach,
    /// Make a checkpoint of a volume.
    CheckpointCreate,
    /// See the checkpoints of a volume.
    CheckpointList,
    /// Delete a checkpoint.
    CheckpointDelete,
    /// Build a template.
    TemplateBuild,
    /// See the templates.
    TemplateList,
    /// See one.
    TemplateGet,
    /// Remove one.
    TemplateDelete,
    /// Make a token.
    TokenMint,
    /// See the tokens.
    TokenList,
    /// Take a token out of use.
    TokenRevoke,
    /// Change what a sandbox may reach.
    EgressSet,
    /// Ask what would happen to a request of one.
    EgressExplain,
    /// Read what the gateway decided.
    EgressRead,
    /// Make a session in a sandbox.
    SessionCreate,
    /// See the sessions of one.
    SessionList,
    /// End one.
    SessionEnd,
    /// Read the audit lines of one sandbox.
    AuditReadSandbox,
    /// Read all audit lines of the organisation.
    AuditReadAll,
    /// Read the numbers of the installation.
    MetricsRead,
}

/// Whose the object is.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// The caller's organisation, as with everything that is listed or made.
    Caller,
    /// What the store says about an id: an organisation, or nothing.
    Found(Option<&'a OrganizationId>),
}

/// Proof that an action was allowed. Only [`may`] makes one.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Permit {
    action: Action,
}

/// Why an action is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The token lacks this scope.
    Scope(Scope),
    /// The caller knows no such object.
    Unknown(&'static str),
}

/// Decides whether `caller` may do `action` to what `owner` owns.
pub fn may(caller: &Caller, action: Action, owner: Owner<'_>) -> Result<Permit, Denied> {
    let sufficient = action.scopes();
    if !sufficient.iter().any(|scope| caller.may(*scope)) {
        return Err(Denied::Scope(sufficient[0]));
    }
    match owner {
        Owner::Caller => Ok(Permit { action }),
        Owner::Found(Some(organization)) if *organization == caller.organization => {
            Ok(Permit { action })
        }
        Owner::Found(_) => Err(Denied::Unknown(action.noun())),
    }
}

impl Permit {
    /// What was allowed.
    pub fn action(&self) -> Action {
        self.action
    }
}

impl Action {
    /// Every action, for tests.
    pub const ALL: [Self; 51] = [
        Self::SandboxCreate,
        Self::SandboxGet,
        Self::SandboxList,
        Self::SandboxTerminate,
        Self::SandboxSetTimeout,
        Self::SandboxPause,
        Self::SandboxResume,
        Self::SandboxFork,
        Self::SnapshotCreate,
        Self::SnapshotList,
        Self::SnapshotGet,
        Self::SnapshotDelete,
        Self::SandboxConsole,
        Self::ProcessStart,
        Self::ProcessUse,
        Self::ProcessList,
        Self::FileRead,
        Self::FileWrite,
        Self::FileRemove,
        Self::FileMove,
        Self::DirectoryMake,
        Self::FileLook,
        Self::GuestLook,
        Self::LimitsGet,
        Self::ImageList,
        Self::ImageGet,
        Self::VolumeCreate,
        Self::VolumeGet,
        Self::VolumeList,
        Self::VolumeDelete,
        Self::VolumeAttach,
        Self::VolumeDetach,
        Self::CheckpointCreate,
        Self::CheckpointList,
        Self::CheckpointDelete,
        Self::TemplateBuild,
        Self::TemplateList,
        Self::TemplateGet,
        Self::TemplateDelete,
        Self::TokenMint,
        Self::TokenList,
        Self::TokenRevoke,
        Self::EgressSet,
        Self::EgressExplain,
        Self::EgressRead,
        Self::SessionCreate,
        Self::SessionList,
        Self::SessionEnd,
        Self::AuditReadSandbox,
        Self::AuditReadAll,
        Self::MetricsRead,
    ];

    /// The scopes of which one is needed. Sandbox scopes and the administrator's
    /// are separate worlds: `admin` opens no sandbox (U14).
    pub fn scopes(self) -> &'static [Scope] {
        match self {
            Self::SandboxCreate
            | Self::SandboxTerminate
            | Self::SandboxSetTimeout
            | Self::SandboxPause
            | Self::SandboxResume
            | Self::SandboxFork
            | Self::SnapshotCreate
            | Self::SnapshotDelete
            | Self::ProcessStart
            | Self::ProcessUse
            | Self::FileWrite
            | Self::FileRemove
            | Self::FileMove
            | Self::DirectoryMake
            | Self::EgressSet
            | Self::SessionCreate
            | Self::SessionEnd
            | Self::VolumeCreate
            | Self::VolumeDelete
            | Self::VolumeAttach
            | Self::VolumeDetach
            | Self::CheckpointCreate
            | Self::CheckpointDelete
            | Self::TemplateBuild
            | Self::TemplateDelete => &[SandboxesWrite],
            Self::SandboxGet
            | Self::SandboxList
            | Self::SandboxConsole
            | Self::SnapshotList
            | Self::SnapshotGet
            | Self::ProcessList
            | Self::FileRead
            | Self::FileLook
            | Self::GuestLook
            | Self::EgressExplain
            | Self::SessionList
            | Self::VolumeGet
            | Self::VolumeList
            | Self::CheckpointList
            | Self::TemplateList
            | Self::TemplateGet
            | Self::LimitsGet => &[SandboxesRead],
            Self::ImageList | Self::ImageGet | Self::EgressRead | Self::AuditReadSandbox => {
                &[SandboxesRead, Admin]
            }
            Self::TokenMint
            | Self::TokenList
            | Self::TokenRevoke
            | Self::AuditReadAll
            | Self::MetricsRead => &[Admin],
        }
    }

    /// The word in the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SandboxCreate => "sandbox.create",
            Self::SandboxGet => "sandbox.get",
            Self::SandboxList => "sandbox.list",
            Self::SandboxTerminate => "sandbox.terminate",
            Self::SandboxSetTimeout => "sandbox.set_timeout",
            Self::SandboxPause => "sandbox.pause",
            Self::SandboxResume => "sandbox.resume",
            Self::SandboxFork => "sandbox.fork",
            Self::SnapshotCreate => "snapshot.create",
            Self::SnapshotList => "snapshot.list",
            Self::SnapshotGet => "snapshot.get",
            Self::SnapshotDelete => "snapshot.delete",
            Self::SandboxConsole => "sandbox.console",
            Self::ProcessStart => "process.start",
            Self::ProcessUse => "process.use",
            Self::ProcessList => "process.list",
            Self::FileRead => "file.read",
            Self::FileWrite => "file.write",
            Self::FileRemove => "file.remove",
            Self::FileMove => "file.move",
            Self::DirectoryMake => "directory.make",
            Self::FileLook => "file.look",
            Self::GuestLook => "guest.look",
            Self::LimitsGet => "limits.get",
            Self::ImageList => "image.list",
            Self::ImageGet => "image.get",
            Self::VolumeCreate => "volume.create",
            Self::VolumeGet => "volume.get",
            Self::VolumeList => "volume.list",
            Self::VolumeDelete => "volume.delete",
            Self::VolumeAttach => "volume.attach",
            Self::VolumeDetach => "volume.detach",
            Self::CheckpointCreate => "checkpoint.create",
            Self::CheckpointList => "checkpoint.list",
            Self::CheckpointDelete => "checkpoint.delete",
            Self::TemplateBuild => "template.build",
            Self::TemplateList => "template.list",
            Self::TemplateGet => "template.get",
            Self::TemplateDelete => "template.delete",
            Self::TokenMint => "token.mint",
            Self::TokenList => "token.list",
            Self::TokenRevoke => "token.revoke",
            Self::EgressSet => "egress.set",
            Self::EgressExplain => "egress.explain",
            Self::EgressRead => "egress.read",
            Self::SessionCreate => "session.create",
            Self::SessionList => "session.list",
            Self::SessionEnd => "session.end",
            Self::AuditReadSandbox | Self::AuditReadAll => "audit.read",
            Self::MetricsRead => "metrics.read",
        }
    }

    /// What its object is called.
    pub fn noun(self) -> &'static str {
        match self {
            Self::TokenMint | Self::TokenList | Self::TokenRevoke => "token",
            Self::ImageList | Self::ImageGet => "image",
            Self::VolumeCreate | Self::VolumeGet | Self::VolumeList | Self::VolumeDelete => {
                "volume"
            }
            Self::CheckpointCreate | Self::CheckpointList | Self::CheckpointDelete => "checkpoint",
            Self::SnapshotList | Self::SnapshotGet | Self::SnapshotDelete => "snapshot",
            Self::TemplateBuild | Self::TemplateList | Self::TemplateGet | Self::TemplateDelete => {
                "template"
            }
            Self::LimitsGet => "limit",
            Self::AuditReadAll => "audit line",
            Self::MetricsRead => "metric",
            Self::SandboxCreate
            | Self::SandboxGet
            | Self::SandboxList
            | Self::SandboxTerminate
            | Self::SandboxSetTimeout
            | Self::SandboxPause
            | Self::SandboxResume
            | Self::SandboxFork
            | Self::SnapshotCreate
            | Self::SandboxConsole
            | Self::ProcessStart
            | Self::ProcessUse
            | Self::ProcessList
            | Self::FileRead
            | Self::FileWrite
            | Self::FileRemove
            | Self::FileMove
            | Self::DirectoryMake
            | Self::FileLook
            | Self::GuestLook
            | Self::EgressSet
            | Self::EgressExplain
            | Self::EgressRead
            | Self::SessionCreate
            | Self::SessionList
            | Self::SessionEnd
            | Self::VolumeAttach
            | Self::VolumeDetach
            | Self::AuditReadSandbox => "sandbox",
        }
    }
}

#[cfg(test)]
mod tests;
