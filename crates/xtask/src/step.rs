//! Progress of a long task: what is done now, how long it took, how much is left.

use std::{
    io::{IsTerminal, Write},
    time::Instant,
};

use anyhow::Context;

/// A task of a known number of steps.
#[derive(Debug)]
pub(crate) struct Steps {
    total: usize,
    done: usize,
    started: Instant,
}

impl Steps {
    /// A task of `total` steps that begins now.
    pub(crate) fn new(total: usize) -> Self {
        Self { total, done: 0, started: Instant::now() }
    }

    /// Runs one step, named `what` on the terminal and in an error.
    pub(crate) fn run<T>(
        &mut self,
        what: &str,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.done += 1;
        let label = format!("[{}/{}] {what}", self.done, self.total);
        // A terminal shows the step while it runs; a log gets one line for it.
        let live = std::io::stdout().is_terminal();
        if live {
            print!("{label} ...");
            std::io::stdout().flush()?;
        }
        let began = Instant::now();
        let result = work().with_context(|| format!("{what} failed"))?;
        let back = if live { "\r\x1b[K" } else { "" };
        println!("{back}{label}: {:.1} s", began.elapsed().as_secs_f64());
        Ok(result)
    }

    /// Seconds since the task began.
    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
