//! Ends a process when the client that follows it goes away.
//!
//! A process outlives its stream, so nothing in the sandbox ends it; a client
//! that wants it ended says so when it starts it and names it by a tag. The
//! leash is pulled when the answer is dropped before it came to its end. That
//! the server stops, or that the sandbox broke off, is nobody's going away: then
//! the process runs on.

use std::time::Duration;

use guest_protocol::{client::GuestClient, process::Selector};
use tokio::time::{sleep, timeout};

use super::Door;

/// How long a process may take to be found and told. It may be starting still.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);
const SIGKILL: i32 = 9;

/// Ends the process of this tag when dropped, unless let go of before.
#[derive(Debug)]
pub(crate) struct Leash {
    held: Option<(Door, String)>,
}

impl Leash {
    pub(crate) fn new(door: Door, tag: String) -> Self {
        Self { held: Some((door, tag)) }
    }

    /// The process needs no end any more.
    pub(crate) fn let_go(&mut self) {
        self.held = None;
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        let Some((door, tag)) = self.held.take().filter(|(door, _)| !door.app.stop.is_cancelled())
        else {
            return;
        };
        let tasks = door.app.tasks.clone();
        tasks.spawn(async move {
            let guest = GuestClient::new(door);
            let telling = async {
                while let Err(error) = guest.signal(Selector::Tag(tag.clone()), SIGKILL).await {
                    tracing::debug!(%error, "a process without its client is not ended yet");
                    sleep(PAUSE).await;
                }
            };
            // One that ended by itself is not found, which is as good.
            drop(timeout(PATIENCE, telling).await);
        });
    }
}
