//! The guest as its host sees it: `guestd init --hosted` in namespaces of its
//! own, spoken to over the link.
//!
//! Needs root and namespaces, as a container does. Where they are missing the
//! tests say so and pass: the same promises are tested in a machine.

#![allow(clippy::print_stdout, reason = "a test that cannot run here says so")]

mod egress;
mod files;
mod gateway;
mod guest;
mod host;
mod modes;
mod processes;
mod survival;
mod watching;
