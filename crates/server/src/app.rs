//! What every handler can reach.

use std::time::Duration;

use control::Control;
use tokio_util::sync::CancellationToken;

/// The state of the router. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// The use cases.
    pub(crate) control: Control,
    /// See [`crate::Options::exec_grace`].
    pub(crate) exec_grace: Duration,
    /// Cancelled when the server begins to stop; every stream ends then.
    pub(crate) stop: CancellationToken,
}
