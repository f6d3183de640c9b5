//! A sandbox's life as its host sees it, over the fake backend and the real
//! link.

#![allow(clippy::unwrap_used, reason = "what cannot be unwrapped has failed the test")]

mod hostile;
mod ledger;
mod lifetime;
mod pause;
mod recovery;
