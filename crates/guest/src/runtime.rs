//! The runtime of every role: one thread, tasks that stay on it.

use std::{future::Future, io};

use tokio::{runtime::Builder, task::LocalSet};

/// Runs `main` to its end. Tasks it spawns locally end with it.
///
/// `threads` bounds the threads for blocking calls; they start on demand and
/// init must never cause one, because it forks.
pub(crate) fn run<T>(threads: usize, main: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(threads)
        .thread_stack_size(1024 * 1024)
        .build()?;
    let outcome = LocalSet::new().block_on(&runtime, main);
    // A blocking call may be stuck in a file system that the workload serves.
    runtime.shutdown_background();
    outcome
}
