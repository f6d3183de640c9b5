//! The signals that we are sent.

use std::{io, time::Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::TWICE;

/// What can happen while a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// We were sent this signal.
    Signal(i32),
    /// The terminal has a new size.
    Resized,
}

/// Listens for signals from when it is made; they no longer end us.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    resize: Signal,
    last: Option<(i32, Instant)>,
    insisted: bool,
}

impl Signals {
    /// Begins to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            resize: signal(SignalKind::window_change())?,
            last: None,
            insisted: false,
        })
    }

    /// The next thing that happens. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Happened {
        let number = tokio::select! {
            Some(()) = self.interrupt.recv() => 2,
            Some(()) = self.terminate.recv() => 15,
            Some(()) = self.hangup.recv() => 1,
            Some(()) = self.quit.recv() => 3,
            Some(()) = self.resize.recv() => return Happened::Resized,
        };
        let now = Instant::now();
        self.insisted |= matches!(
            self.last, Some((last, at)) if last == number && now.duration_since(at) < TWICE
        );
        self.last = Some((number, now));
        Happened::Signal(number)
    }

    /// The next signal that asks us to end.
    pub(crate) async fn stop(&mut self) -> i32 {
        loop {
            if let Happened::Signal(number) = self.next().await {
                return number;
            }
        }
    }

    /// Whether one came twice in a row.
    pub(crate) fn insisted(&self) -> bool {
        self.insisted
    }

    /// The number of the last one.
    pub(crate) fn last(&self) -> i32 {
        self.last.map_or(2, |(number, _)| number)
    }
}
