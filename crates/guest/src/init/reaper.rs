//! Collecting children: our own, and orphans of the workload.
//!
//! Whoever forks says at once that it waits for the child. There is one thread,
//! so a child cannot be collected between the two.

use std::{cell::RefCell, collections::HashMap, io};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// Children that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    expected: RefCell<HashMap<i32, oneshot::Sender<WaitStatus>>>,
}

/// Says when to collect.
#[derive(Debug)]
pub(super) struct Signals(tokio::signal::unix::Signal);

impl Signals {
    /// Waits until a child may have ended.
    pub(super) async fn next(&mut self) -> Option<()> {
        self.0.recv().await
    }
}

impl Reaper {
    /// Begins to listen; before the first fork, so that no end is missed.
    pub(super) fn listen(&self) -> io::Result<Signals> {
        Ok(Signals(signal(SignalKind::child())?))
    }

    /// Announces that `pid`, just forked, is waited for.
    pub(super) fn expect(&self, pid: i32) -> oneshot::Receiver<WaitStatus> {
        let (sender, receiver) = oneshot::channel();
        self.expected.borrow_mut().insert(pid, sender);
        receiver
    }

    /// Kills a child, unless it has been collected and its number is free.
    pub(super) fn kill(&self, pid: i32) {
        if self.expected.borrow().contains_key(&pid)
            && let Some(pid) = Pid::from_raw(pid)
        {
            kill_process(pid, Signal::KILL).ok();
        }
    }

    /// Collects everything that has ended.
    pub(super) fn collect(&self) -> io::Result<()> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let waiting = self.expected.borrow_mut().remove(&pid.as_raw_nonzero().get());
                    if let Some(waiting) = waiting {
                        // Nobody has to be interested any more.
                        waiting.send(status).ok();
                    }
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
