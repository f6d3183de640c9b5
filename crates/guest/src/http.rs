//! HTTP as the API and its workers speak it: bodies, unary calls and streams
//! of the Connect protocol.

pub(crate) mod body;
pub(crate) mod events;
pub(crate) mod rpc;
