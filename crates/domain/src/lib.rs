//! The nouns of Coldframe as types.
//!
//! A value of these types is valid: it was parsed once, at the edge, and every
//! layer below trusts it. Nothing here does I/O, waits, reads a clock or draws
//! random numbers; whoever needs a fresh id passes the bytes in.

pub mod allow;
pub mod base32;
pub mod caller;
pub mod ending;
pub mod environment;
pub mod host;
pub mod id;
pub mod image;
pub mod isolation;
pub mod mode;
pub mod phase;
pub mod region;
pub mod scope;
pub mod secret;
pub mod size;
pub mod snapshot;
pub mod template;
pub mod time;
pub mod token;
pub mod volume;
