//! The real program, where it needs no machine and no server.
//!
//! One binary for all files.

mod program;
mod refusals;
mod server;
mod text;
