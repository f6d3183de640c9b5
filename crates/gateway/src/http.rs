//! HTTP of clients that nobody trusts.
//!
//! [`strict`] and [`guarded`] see to it that a request has one reading;
//! [`target`] reads whereto it is, in the one form that is judged and sent;
//! [`connection`] takes requests off a client's connection, [`forward`] sends
//! them on, over connections that [`pool`] keeps; [`tunnel`] is what follows a
//! `CONNECT`. [`fields`] and [`body`] are what crosses; [`problem`] is how a
//! refusal looks.

pub(crate) mod body;
pub(crate) mod connection;
pub mod fields;
pub(crate) mod forward;
pub mod guarded;
pub(crate) mod pool;
pub(crate) mod problem;
pub mod strict;
pub mod target;
pub(crate) mod tunnel;
