//! A sandbox's life as its host sees it, over the fake backend and the real
//! link.

mod ledger;
mod lifetime;
mod recovery;
