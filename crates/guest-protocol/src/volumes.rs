//! What the host asks of the guest's init about volumes.
//!
//! A machine has [`SLOTS`] disks for volumes, empty until the host puts one in.
//! The host changes what is in a slot; the guest mounts it, lets go of it, and
//! holds it still while the host copies it.

use serde::{Deserialize, Serialize};

/// How many volumes a machine can have at a time.
pub const SLOTS: u8 = 2;

/// A request about one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Mounts what is in the slot. A volume that is mounted there already is no
    /// error.
    Mount {
        /// Counted from 0.
        slot: u8,
        /// Where: absolute, without `.` and `..`.
        path: String,
        /// How large the volume is. The guest waits until it sees this size.
        bytes: u64,
        /// The account that the top folder belongs to.
        owner: u32,
    },
    /// Ends the mount, after everything was written. One that is not mounted is
    /// no error; one that is in use is answered with `Busy`.
    Unmount {
        /// Counted from 0.
        slot: u8,
        /// Where it was mounted.
        path: String,
    },
    /// Writes everything and holds every write from then on, until
    /// [`Request::Thaw`] or the limit.
    Freeze {
        /// Counted from 0.
        slot: u8,
        /// Where it is mounted.
        path: String,
        /// The guest lets writes go on by itself after so many milliseconds.
        limit_ms: u32,
    },
    /// Writes to every volume what waits to be written. Asked before a machine is
    /// ended or captured.
    Sync,
    /// Lets writes go on. Fails when the limit had passed before, because then
    /// the volume was not still all the time.
    Thaw {
        /// Counted from 0.
        slot: u8,
    },
}
