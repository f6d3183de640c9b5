//! How large and how slow a request may be.
//!
//! Streams (files, the guest edge) have no total: their bound is the sandbox's
//! own time limit, a stall limit on each side and flat memory.

use std::time::Duration;

/// The largest JSON request.
pub(crate) const JSON: usize = 1024 * 1024;
/// The largest exec request; its standard input travels inside.
pub(crate) const EXEC_JSON: usize = 8 * 1024 * 1024;
/// The largest request to the guest that is read before it is forwarded.
pub(crate) const INSPECTED: usize = guest_protocol::connect::MAX_MESSAGE;
/// The most header bytes, of a client and of a guest.
pub(crate) const HEADER_BYTES: usize = 32 * 1024;
/// The most headers, of a client and of a guest.
pub(crate) const HEADERS: usize = 100;
/// The longest path of a file in a sandbox (Linux: 4096 with the final NUL).
pub(crate) const PATH_BYTES: usize = 4095;
/// The most bytes of each output that exec keeps.
pub(crate) const MAX_OUTPUT: u32 = 8 * 1024 * 1024;
/// What exec keeps when nothing is said.
pub(crate) const DEFAULT_OUTPUT: u32 = 1024 * 1024;
/// The longest time limit of exec.
pub(crate) const MAX_EXEC: Duration = Duration::from_secs(3600);
/// The time limit of exec when nothing is said.
pub(crate) const DEFAULT_EXEC: Duration = Duration::from_secs(60);

/// The largest context of a template. It lies in a file without a name.
pub(crate) const CONTEXT: u64 = 1 << 30;
/// Contexts that are received at the same time.
pub(crate) const CONTEXTS: usize = 4;
/// After how long without an event a build says that it is under way.
pub(crate) const BUILD_SILENCE: Duration = Duration::from_secs(5);

/// How long the body of a JSON request may take to arrive.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(30);
/// How long an ordinary request may take.
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(60);
/// How long a sandbox may take to start: the first of its kind boots a machine
/// under emulation.
pub(crate) const CREATE_TIME: Duration = Duration::from_secs(300);
/// How long a side that has to act may do nothing in a streamed request.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(60);
