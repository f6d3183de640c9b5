//! HTTP over the use cases.
//!
//! A handler reads, asks [`control`] and renders; no rule lives here. What does
//! live here is everything that makes a socket safe to open: who is asking
//! ([`caller`]), under which name the server may be addressed ([`hosts`]), how
//! large and how slow a request may be ([`limits`], [`pace`]), what all of them
//! may hold ([`memory`]), what strangers may ([`newcomers`]), how an error looks
//! ([`error`]) and how it all ends ([`listen`]).
//!
//! [`guest`] is the authenticated edge of the API inside a sandbox: it lets
//! through what its table names and trusts nothing that comes back.
//!
//! Deliberately absent: TLS (a proxy terminates it), CORS (no page of another
//! origin has business here), cookies.

mod access;
mod app;
mod caller;
mod error;
mod guest;
mod hosts;
mod input;
mod limits;
mod listen;
mod memory;
mod newcomers;
mod numbers;
mod openapi;
mod pace;
mod rest;
mod router;

pub use self::{
    listen::{DEFAULT_ADDRESS, Server},
    openapi::{authorization_table, openapi},
};

use std::time::Duration;

/// How a server listens.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names under which it may be addressed, beside loopback. On an address
    /// that is not loopback an empty list means any.
    pub names: Vec<String>,
    /// The most connections at once. A quarter of them is for those that have not
    /// sent a request with a good token yet; when that is full, the oldest of
    /// them makes room for the next.
    pub max_connections: usize,
    /// How long a client may take to send a request's header, and from its
    /// connection to its first request with a good token.
    pub header_timeout: Duration,
    /// How long a client may take no byte of an answer that lies whole in memory.
    pub answer_pause: Duration,
    /// How long it may take no byte of a stream, which holds little whatever its
    /// reader does. The default is longer than a person looks at a page.
    pub stream_pause: Duration,
    /// How much longer than its command an exec request lives. The guest enforces
    /// the command's limit; this is for a guest that does not.
    pub exec_grace: Duration,
    /// The most bytes that all requests together may hold in memory; one that
    /// needs more is refused for the moment.
    pub memory: usize,
    /// How long requests may go on after shutdown began.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            max_connections: 1024,
            header_timeout: Duration::from_secs(15),
            answer_pause: Duration::from_secs(60),
            stream_pause: Duration::from_secs(3600),
            exec_grace: Duration::from_secs(10),
            memory: 256 * 1024 * 1024,
            drain: Duration::from_secs(10),
        }
    }
}
