//! Reaching into a sandbox: the one edge of the guest API.
//!
//! A surface says what it wants of the guest as a [`GuestCall`]. What it cannot
//! say does not pass: there is no call for "anything else".
//!
//! Operations that start a process or touch a file are on record, as metadata
//! only: the program's name and how many arguments, the path and the size (S42,
//! S44, S92). The calls that serve an operation which is on record already, such
//! as each keystroke into a process, and the ones that only look, add no line
//! when they are allowed; a refusal always does.

use domain::{caller::Caller, id::SandboxId, phase::Phase, scope::Scope};
use sandbox::{activity::Stream, host::HostError};
use store::sandboxes::Sandbox;

use crate::{
    Control,
    authority::Action,
    control::{Detail, clipped, detail},
    error::Error,
    sandboxes::{from_host, running},
};

/// What is asked of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestCall {
    /// Whether it is well.
    Health,
    /// How busy it is.
    Metrics,
    /// Start a process.
    ProcessStart {
        /// The program, without its arguments.
        program: String,
        /// How many arguments it gets.
        arguments: usize,
    },
    /// Follow the output of one that runs.
    ProcessConnect,
    /// List them.
    ProcessList,
    /// Give one input, or close its input.
    ProcessInput,
    /// Send one a signal.
    ProcessSignal,
    /// Change one's terminal.
    ProcessUpdate,
    /// Read a file.
    FileRead {
        /// Its path.
        path: String,
    },
    /// Write a file.
    FileWrite {
        /// Its path.
        path: String,
        /// How many bytes, where it is known beforehand.
        size: Option<u64>,
    },
    /// Remove a file or a directory.
    FileRemove {
        /// Its path.
        path: String,
    },
    /// Move one.
    FileMove {
        /// From where.
        from: String,
        /// To where.
        to: String,
    },
    /// Make a directory.
    DirectoryMake {
        /// Its path.
        path: String,
    },
    /// Describe a file.
    FileStat,
    /// List a directory.
    DirectoryList,
    /// Follow changes of a directory.
    Watch,
}

impl GuestCall {
    /// The scope it needs.
    pub fn scope(&self) -> Scope {
        self.action().scopes()[0]
    }

    fn action(&self) -> Action {
        match self {
            Self::Health | Self::Metrics => Action::GuestLook,
            Self::ProcessStart { .. } => Action::ProcessStart,
            Self::ProcessConnect
            | Self::ProcessInput
            | Self::ProcessSignal
            | Self::ProcessUpdate => Action::ProcessUse,
            Self::ProcessList => Action::ProcessList,
            Self::FileRead { .. } => Action::FileRead,
            Self::FileWrite { .. } => Action::FileWrite,
            Self::FileRemove { .. } => Action::FileRemove,
            Self::FileMove { .. } => Action::FileMove,
            Self::DirectoryMake { .. } => Action::DirectoryMake,
            Self::FileStat | Self::DirectoryList | Self::Watch => Action::FileLook,
        }
    }

    /// What the audit log says about it; `None` where it says nothing.
    fn told(&self) -> Option<Detail> {
        match self {
            Self::ProcessStart { program, arguments } => {
                Some(detail([("program", clipped(program)), ("arguments", (*arguments).into())]))
            }
            Self::FileRead { path } | Self::FileRemove { path } | Self::DirectoryMake { path } => {
                Some(detail([("path", clipped(path))]))
            }
            Self::FileWrite { path, size } => Some(match size {
                Some(size) => detail([("path", clipped(path)), ("size", (*size).into())]),
                None => detail([("path", clipped(path))]),
            }),
            Self::FileMove { from, to } => {
                Some(detail([("path", clipped(from)), ("to", clipped(to))]))
            }
            Self::Health
            | Self::Metrics
            | Self::ProcessConnect
            | Self::ProcessList
            | Self::ProcessInput
            | Self::ProcessSignal
            | Self::ProcessUpdate
            | Self::FileStat
            | Self::DirectoryList
            | Self::Watch => None,
        }
    }
}

impl Control {
    /// Opens a stream to the guest API for one call.
    ///
    /// HTTP/1.1 is spoken on it, by the surface: one request, then it is closed.
    pub async fn open_guest(
        &self,
        caller: &Caller,
        id: &SandboxId,
        call: &GuestCall,
    ) -> Result<Stream, Error> {
        let action = call.action();
        let object = Some(id.as_str());
        let judged = self.judge_sandbox(caller, action, id).await;
        let judged = match judged {
            Ok((permit, row)) => self.brought_to_run(caller, row).await.map(|()| (permit, ())),
            Err(error) => Err(error),
        };
        match (call.told(), judged) {
            (Some(told), judged) => {
                self.record(caller, action, object, told, judged).await?;
            }
            (None, Ok(_)) => {}
            (None, Err(error)) => {
                return Err(self.refuse(caller, action, object, Detail::new(), error).await);
            }
        }
        match self.host().open(id).await {
            // It was paused between being judged and being reached.
            Err(HostError::Paused | HostError::NotFound) => {
                let row = self.store().sandbox(id).await?;
                let row = row.ok_or(Error::NotFound { noun: "sandbox" })?;
                self.brought_to_run(caller, row).await?;
                self.host().open(id).await.map_err(from_host)
            }
            opened => opened.map_err(from_host),
        }
    }

    /// Waits until a sandbox runs that resumes when it is used; refuses one that
    /// does not run otherwise.
    async fn brought_to_run(&self, caller: &Caller, row: Sandbox) -> Result<(), Error> {
        let pausing = row.phase == Phase::Running && self.moves().is_pausing(&row.id);
        let rests = row.phase == Phase::Paused || pausing;
        if rests && row.rest.auto_resume && row.intent.is_none() {
            return self.wake(caller, row).await;
        }
        running(row).map(drop)
    }
}
