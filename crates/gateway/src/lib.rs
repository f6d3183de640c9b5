//! The way out of a sandbox, and the only one.
//!
//! Policy is data and enforcement is separate. [`rules`] is what one sandbox may
//! do at one generation; [`decide`] are pure functions from those and a request
//! to a permit or a refusal, in one order, before any name is looked up;
//! [`resolve`] looks a permitted name up once, has every answer judged by
//! [`address`], and returns addresses that alone may be dialled; [`dns`] is the
//! resolver that programs inside see; [`http`] and [`tls`] read what clients write in
//! one way only; [`splice`] moves what is permitted; [`journal`] is what is kept of
//! it all; [`code`] are the stable words of a refusal.
//!
//! Invariants:
//!
//! - No rules, or rules of an older generation, mean no way out.
//! - A destination is read once, into [`domain::host::Host`], and that value is
//!   matched, resolved, dialled and recorded.
//! - Nothing is dialled but a [`decide::Pinned`] address.
//!
//! Deliberately absent: storage. What it needs to know comes through
//! [`rules::Policy`], what it has to tell goes into [`journal::Journal`].

pub mod address;
mod client;
pub mod code;
pub mod decide;
pub mod dns;
pub mod engine;
mod front;
pub mod http;
pub mod journal;
pub mod pace;
pub mod presets;
pub mod process;
pub mod resolve;
pub mod rules;
pub mod splice;
pub mod stream;
pub mod tls;
mod upstream;
pub mod wire;
