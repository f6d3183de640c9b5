//! What every handler can reach.

use std::time::Duration;

use control::Control;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{memory::Memory, numbers::Counters};

/// The state of the router. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// The use cases.
    pub(crate) control: Control,
    /// See [`crate::Options::exec_grace`].
    pub(crate) exec_grace: Duration,
    /// What requests may hold in memory together.
    pub(crate) memory: Memory,
    /// What happened so far.
    pub(crate) counters: Counters,
    /// Cancelled when the server begins to stop; every stream ends then.
    pub(crate) stop: CancellationToken,
    /// What goes on after the request that caused it; waited for at the end.
    pub(crate) tasks: TaskTracker,
}
