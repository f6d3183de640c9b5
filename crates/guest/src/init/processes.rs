//! The processes that were started through the API.
//!
//! Init keeps the table because the API can be killed: a new API learns from
//! it what runs, with copies of the streams. An entry stays until the API says
//! that all output was read.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
};

use super::cgroups::Group;
use crate::messages::{End, Process, Wiring};

/// Entries at the same time, ended ones with open output included.
const MOST: usize = 4096;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Processes {
    last: Cell<u64>,
    starting: Cell<usize>,
    entries: RefCell<BTreeMap<u64, Entry>>,
}

/// A process and what init holds of it.
#[derive(Debug)]
struct Entry {
    process: Process,
    /// As [`Process`] says; our copies.
    streams: Vec<OwnedFd>,
    /// Gone once the process has ended.
    group: Option<Group>,
}

/// A place in the table for a process that is being started.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pub(super) id: u64,
    table: &'a Processes,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.table.starting.set(self.table.starting.get() - 1);
    }
}

impl Processes {
    /// Takes a place, if there is one.
    pub(super) fn reserve(&self) -> Option<Reservation<'_>> {
        if self.entries.borrow().len() + self.starting.get() >= MOST {
            return None;
        }
        self.starting.set(self.starting.get() + 1);
        self.last.set(self.last.get() + 1);
        Some(Reservation { id: self.last.get(), table: self })
    }

    /// Enters a process that runs.
    pub(super) fn insert(&self, process: Process, streams: Vec<OwnedFd>, group: Group) {
        let entry = Entry { process, streams, group: Some(group) };
        self.entries.borrow_mut().insert(entry.process.id, entry);
    }

    /// Sends a signal to a process that runs; otherwise there is nobody to hear it.
    pub(super) fn signal(&self, id: u64, number: i32) {
        if let Some(Entry { group: Some(group), .. }) = self.entries.borrow().get(&id) {
            // It may have ended just now.
            group.signal(number).ok();
        }
    }

    /// Closes our copy of standard input.
    pub(super) fn close_stdin(&self, id: u64) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(&id)
            && entry.process.wiring == Wiring::Pipes
        {
            entry.process.wiring = Wiring::NoStdin;
            drop(entry.streams.remove(0));
        }
    }

    /// Records an end and hands out the group, which is of no more use.
    pub(super) fn end(&self, id: u64, end: End) -> Option<Group> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(&id)?;
        entry.process.end = Some(end);
        entry.group.take()
    }

    /// Forgets a process that has ended.
    pub(super) fn release(&self, id: u64) {
        let mut entries = self.entries.borrow_mut();
        if entries.get(&id).is_some_and(|entry| entry.process.end.is_some()) {
            entries.remove(&id);
        }
    }

    /// Copies everything for a new API.
    pub(super) fn copy(&self) -> io::Result<Vec<(Process, Vec<OwnedFd>)>> {
        let entries = self.entries.borrow();
        let copy = |entry: &Entry| {
            let streams = entry.streams.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?;
            Ok((entry.process.clone(), streams))
        };
        entries.values().map(copy).collect()
    }
}
