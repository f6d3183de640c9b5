//! One sandbox's life.
//!
//! [`spec`] says what a sandbox is made of, [`backend`] is the contract of a
//! place where it runs, [`lifecycle`] decides what follows what, [`driver`] does
//! it, one task for each sandbox, and [`host`] holds those of this machine.
//! [`ledger`] is what they report to and [`activity`] says when one is idle.
//! [`link`] is the host's end of the byte pipe into the guest and [`guest`] the
//! client of the API behind it; [`egress`] carries what the guest opens, and
//! [`network`] is what programs inside see of it.
//!
//! Nothing here knows HTTP surfaces, SQL or a particular backend, and nothing
//! believes the guest: what it sends is bounded before it is read, and the link
//! it arrives on says who it is.

pub mod activity;
pub mod backend;
pub mod driver;
pub mod egress;
pub mod gauge;
pub mod guest;
pub mod host;
pub mod ledger;
pub mod lifecycle;
pub mod link;
pub mod network;
pub mod spec;
pub mod volumes;

mod templates;
