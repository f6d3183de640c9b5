//! The use cases: who may do what, in what order, and the audit line for it.
//!
//! ```text
//!  request ──► judge ──► record ──► act
//!              (pure)    (audit,     (host, images)
//!                        intent)
//! ```
//!
//! Every use case is a method of [`Control`], takes a `Caller`, and goes through
//! these three steps in this order. [`authority`] decides; what it returns for a
//! "yes" is needed to write an `allowed` line, and every change needs a line. So
//! nothing happens that was not decided and is not on record.
//!
//! Invariants:
//!
//! - One call, one audit line, refusals included. What cannot be recorded is not
//!   done. (Streams of an operation that is on record already, such as the input
//!   of a process, add none: see [`guest`].)
//! - An id of another organisation and an id of nothing get the same answer.
//! - A start belongs to a task of ours, not to the request that asked for it.
//!
//! Deliberately absent: HTTP, and every name of a backend.

pub mod admission;
pub mod audit;
pub mod authority;
pub mod bootstrap;
pub mod egress;
pub mod error;
pub mod guest;
pub mod images;
pub mod keeper;
pub mod ledger;
pub mod limits;
pub mod metrics;
pub mod page;
pub mod pool;
pub mod recovery;
pub mod sandboxes;
pub mod sessions;
pub mod settings;
pub mod snapshots;
pub mod templates;
pub mod tokens;
pub mod volumes;

mod control;
mod fingerprint;
mod moves;
mod starts;

pub use control::Control;
