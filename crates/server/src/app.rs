//! What every handler can reach.

use control::Control;
use tokio_util::sync::CancellationToken;

/// The state of the router. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct App {
    /// The use cases.
    pub(crate) control: Control,
    /// Cancelled when the server begins to stop; every stream ends then.
    pub(crate) stop: CancellationToken,
}
