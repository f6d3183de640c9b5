//! Keeping a machine still, so that what is read of it belongs to one moment.
//!
//! A machine that is stopped executes nothing, but QEMU's own loop still moves
//! bytes of the link into its memory and out of it. So our side of the link is
//! shut first, and then QEMU is given rounds of its loop until the socket's
//! queues do not change any more. After that nothing changes the machine: disk
//! reads were finished by the stop, and randomness is not delivered to a
//! stopped machine.
//!
//! A machine that somebody stopped and forgot, such as a killed server, goes on
//! when it is told to ([`Machine::proceed`]).

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::PoisonError,
};

use serde_json::{Value, json};
use tokio::sync::MutexGuard;

use super::{Machine, QmpError};
use crate::qemu::memfd;

/// How often the queues must be the same before nothing moves any more.
const QUIET_ROUNDS: u32 = 3;
/// Rounds after which something is wrong: a full socket takes about sixty.
const MAX_ROUNDS: u32 = 5000;
/// The number of the set that QEMU finds the file for the state in.
const STATE_SET: u32 = 7;
/// Room for device state, which is a few hundred KiB.
const MAX_STATE_BYTES: u64 = 16 * 1024 * 1024;

/// Why a machine could not be stopped, captured or let go on.
#[derive(Debug, thiserror::Error)]
pub(in crate::qemu) enum StillError {
    /// QEMU did not do it.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// It is neither running nor stopped, such as one that shut down.
    #[error("the machine is in the state {0:?}")]
    State(String),
    /// Bytes kept moving.
    #[error("the link did not come to rest")]
    Restless,
    /// The state could not be read.
    #[error("the device state cannot be read")]
    Read(#[from] io::Error),
}

/// A machine that stands still, with its link shut. The link opens when this
/// goes; the machine goes on only when told.
#[derive(Debug)]
pub(in crate::qemu) struct Still<'a> {
    machine: &'a Machine,
    _turn: MutexGuard<'a, ()>,
}

impl Machine {
    /// Stops the machine. On error it may stand still: let it go on.
    pub(in crate::qemu) async fn stand_still(&self) -> Result<Still<'_>, StillError> {
        let turn = self.turn.lock().await;
        self.valve.shut();
        let still = Still { machine: self, _turn: turn };
        self.command("stop", json!({}), None).await?;
        match self.status().await?.as_str() {
            "paused" => {}
            other => return Err(StillError::State(other.to_owned())),
        }
        still.settle().await?;
        Ok(still)
    }

    /// Lets a machine go on that was stopped.
    pub(in crate::qemu) async fn proceed(&self) -> Result<(), StillError> {
        match self.status().await?.as_str() {
            "paused" => drop(self.command("cont", json!({}), None).await?),
            "running" => {}
            other => return Err(StillError::State(other.to_owned())),
        }
        Ok(())
    }

    async fn status(&self) -> Result<String, StillError> {
        let answer = self.command("query-status", json!({}), None).await?;
        let status = answer.get("status").and_then(Value::as_str).unwrap_or_default();
        Ok(status.chars().filter(char::is_ascii).take(40).collect())
    }

    /// Bytes in the socket of the link, each way.
    fn queues(&self) -> (u64, u64) {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let current = link.current.upgrade();
        let socket = match (&link.prepared, &current) {
            (Some(stream), _) => stream.as_fd(),
            (None, Some(handle)) => handle.as_fd(),
            (None, None) => return (0, 0),
        };
        let incoming = rustix::io::ioctl_fionread(socket).unwrap_or(0);
        let mut outgoing: libc::c_int = 0;
        // SAFETY: the request writes one int to the place it is given, which is
        // ours and lives through the call.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut outgoing) };
        (incoming, if result == 0 { outgoing.unsigned_abs().into() } else { 0 })
    }
}

impl Still<'_> {
    async fn settle(&self) -> Result<(), StillError> {
        let mut queues = self.machine.queues();
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            // Each answer comes after a round of QEMU's loop.
            self.machine.status().await?;
            let now = self.machine.queues();
            quiet = if now == queues { quiet + 1 } else { 0 };
            queues = now;
            if quiet == QUIET_ROUNDS {
                return Ok(());
            }
        }
        Err(StillError::Restless)
    }

    /// The state of the devices, as a machine that is started loads it.
    pub(in crate::qemu) async fn devices(&self) -> Result<Vec<u8>, StillError> {
        let file = memfd::memory("coldframe-state", 0)?;
        // QEMU looks for a descriptor that is open for writing and nothing else.
        let writer = memfd::reopen_for_writing(file.as_fd())?;
        let set = json!({ "fdset-id": STATE_SET });
        self.machine.command("add-fd", set.clone(), Some(writer)).await?;
        let place = format!("/dev/fdset/{STATE_SET}");
        // Despite its name it has nothing to do with Xen: it leaves memory out.
        let save = json!({ "filename": place, "live": false });
        let saved = self.machine.command("xen-save-devices-state", save, None).await;
        self.machine.command("remove-fd", set, None).await?;
        saved?;
        read(&file)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.machine.valve.open();
    }
}

fn read(file: &OwnedFd) -> Result<Vec<u8>, StillError> {
    let mut state = Vec::new();
    let reader = File::from(memfd::reopen(file.as_fd())?);
    reader.take(MAX_STATE_BYTES + 1).read_to_end(&mut state)?;
    if state.is_empty() || state.len() as u64 > MAX_STATE_BYTES {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    }
    Ok(state)
}
