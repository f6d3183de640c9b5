//! What travels between a client and the server, and a client.
//!
//! One file for each noun holds its wire types: snake_case JSON, times as
//! RFC 3339, ids as text. They know no rules. A request refuses fields it does
//! not know, so that a misspelt `timeout_second` is an error and not a default;
//! an answer ignores them, so that an older client can read a newer server.
//!
//! [`client`] is the typed client over HTTP, [`guest`] its door to the API
//! inside a sandbox.

pub mod audit;
pub mod client;
pub mod egress;
pub mod exec;
pub mod files;
pub mod guest;
pub mod images;
pub mod limits;
pub mod metrics;
pub mod problem;
pub mod sandboxes;
pub mod sessions;
pub mod snapshots;
pub mod templates;
pub mod time;
pub mod tokens;
pub mod variables;
pub mod volumes;
