//! The use cases over a real store and a backend without machines.

#[path = "use_cases/access.rs"]
mod access;
#[path = "use_cases/crash.rs"]
mod crash;
#[path = "use_cases/create.rs"]
mod create;
#[path = "use_cases/egress.rs"]
mod egress;
#[path = "use_cases/end.rs"]
mod end;
#[path = "use_cases/fixture.rs"]
mod fixture;
#[path = "use_cases/fork.rs"]
mod fork;
#[path = "use_cases/guest.rs"]
mod guest;
#[path = "use_cases/pause.rs"]
mod pause;
#[path = "use_cases/pool.rs"]
mod pool;
#[path = "use_cases/record.rs"]
mod record;
#[path = "use_cases/recovery.rs"]
mod recovery;
#[path = "use_cases/snapshots.rs"]
mod snapshots;
#[path = "use_cases/templates.rs"]
mod templates;
#[path = "use_cases/tokens.rs"]
mod tokens;
