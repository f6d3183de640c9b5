//! The ways in, as the relay inside names them.

pub(crate) mod captured;
pub(crate) mod dns;
pub(crate) mod named;
pub(crate) mod proxy;
pub(crate) mod udp;
