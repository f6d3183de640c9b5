//! What crosses the wall of a sandbox.
//!
//! From the outside in: [`frame`] cuts a byte pipe that has no connections of
//! its own into frames with an epoch; [`link`] turns those into one session
//! after a [`hello`]; [`mux`] carries many streams over a session; a
//! [`preface`] says what each stream is for. [`control`] is spoken with the
//! guest's init, [`egress`] is what its relay says to the gateway, and [`connect`], [`process`] and [`filesystem`] are the guest
//! API, the wire API of E2B's in-sandbox daemon.
//!
//! Both sides use this crate and neither trusts the other's bytes: every
//! length is bounded before it is believed.

pub mod bytes_json;
#[cfg(feature = "client")]
pub mod client;
pub mod connect;
pub mod control;
pub mod egress;
pub mod filesystem;
pub mod frame;
pub mod hello;
pub mod link;
pub mod mux;
pub mod preface;
pub mod process;
pub mod volumes;
