//! HTTP of clients that nobody trusts.

pub mod fields;
pub mod guarded;
pub mod strict;
