//! `/v1`: one file for each noun.
//!
//! A handler reads, asks a use case and renders. Its doc comment is what the
//! API reference says about it, and its `security` is the scope that the use
//! case demands, which a test compares with what happens.

pub(crate) mod audit;
pub(crate) mod console;
pub(crate) mod egress;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod guest;
pub(crate) mod health;
pub(crate) mod images;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod pause;
pub(crate) mod reference;
pub(crate) mod sandboxes;
pub(crate) mod sessions;
pub(crate) mod snapshots;
pub(crate) mod templates;
pub(crate) mod tokens;
pub(crate) mod volumes;
