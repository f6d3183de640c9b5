//! Images (stub)
