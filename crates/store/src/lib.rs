//! Everything Coldframe remembers.
//!
//! [`Store`] is one repository over two databases: SQLite in a file, and
//! Postgres. Each file here holds the rows and the statements of one noun; the
//! statements are written once and run on both ([`sql`]). Images are files, not
//! rows, and live in `images`.
//!
//! Invariants:
//!
//! - What a call has answered is on disk. A killed process, and on SQLite a
//!   power cut too, loses nothing that was answered.
//! - A change of a sandbox's phase is a compare-and-set, so that of two writers
//!   one wins and the other learns it.
//! - A change and its audit line are one transaction.
//! - No row has a place for the value of an environment variable or for the text
//!   of a token (S28). Keys of snapshots are kept sealed ([`sealing`]).
//!
//! Deliberately absent: who may do what, which is `control`'s.

pub mod archive;
pub mod audit;
pub mod bootstrap;
pub mod checkpoints;
pub mod chunks;
pub mod disks;
pub mod egress;
pub mod error;
pub mod images;
pub mod objects;
pub mod oci;
pub mod organizations;
pub mod sandboxes;
pub mod sealing;
pub mod sessions;
pub mod snapshots;
pub mod templates;
pub mod tokens;
pub mod usage;
pub mod users;
pub mod volumes;

mod open;
mod sql;

pub use open::Store;
