//! The QEMU backend with real machines.
//!
//! They need root, QEMU, an image and the guest program; the environment says
//! where the last two are (`rig`). A test that cannot run says why and does
//! nothing else.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped has failed the test")]
#![allow(clippy::print_stdout, reason = "a test that cannot run says so, and costs are printed")]

mod confinement;
mod contract;
mod cost;
mod egress;
mod endings;
#[path = "../../../guest/tests/it/gateway.rs"]
mod gateway;
mod interruption;
mod limits;
#[path = "../../../guest/tests/it/modes.rs"]
mod modes;
mod rig;
mod scale;
mod snapshot;
mod survival;
