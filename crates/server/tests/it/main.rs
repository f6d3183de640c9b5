//! The server through its socket: the real use cases on a database in memory, a
//! backend whose guests are scripted, and clients that mean well and that do not.

#![allow(clippy::unwrap_used, reason = "a test ends where its expectation does")]

mod audit;
mod authorization;
mod bodies;
mod connections;
mod egress;
mod exec;
mod files;
mod guest;
mod images;
mod limits;
mod metrics;
mod raw;
mod reference;
mod sandboxes;
mod sessions;
mod shutdown;
mod snapshots;
mod templates;
mod tokens;
mod volumes;
