//! The first words of each session.
//!
//! The host speaks first and chooses the epoch; the guest answers with the same
//! epoch or not at all. Versions must be equal: both sides come from one build,
//! and a guest of another build belongs to a template that is rebuilt.

use serde::{Deserialize, Serialize};

/// The version of everything in this crate. Raise it with any change of the wire.
pub const VERSION: u16 = 2;

/// The largest encoded hello. Anything longer is not one.
pub const MAX_HELLO: usize = 256;

/// What the host says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the host.
    pub version: u16,
    /// Marks the bytes of this session; drawn at random.
    pub epoch: u32,
}

/// What the guest answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloAck {
    /// [`VERSION`] of the guest.
    pub version: u16,
    /// The build of the guest, for an operator.
    pub guest: String,
}
