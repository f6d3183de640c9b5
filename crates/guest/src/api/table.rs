//! The processes the API knows: running, being started, and lately ended.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use guest_protocol::{
    connect::{self, Code, Error},
    process::{Event, ProcessInfo, Selector, StartEvent},
};
use tokio::sync::{mpsc, watch};

use super::{
    Api, pump,
    streams::{Sink, Streams},
};
use crate::messages::{self, Command, End};

/// An ended process can be asked about for so long,
const RETAINED: Duration = Duration::from_secs(60);
/// and only the last so many.
const MOST_RETAINED: usize = 256;

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    command: Command,
    tag: Option<String>,
    sink: RefCell<Option<Rc<Sink>>>,
    end: watch::Sender<Option<End>>,
    /// `None` once the end was announced.
    listeners: RefCell<Option<Vec<mpsc::Sender<Bytes>>>>,
    read: Cell<u64>,
    telling: Cell<usize>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Table {
    running: RefCell<BTreeMap<u64, Rc<Process>>>,
    retained: RefCell<VecDeque<(Instant, Rc<Process>)>>,
    /// Who waits for init's answer to a start.
    pending: RefCell<HashMap<u64, mpsc::Sender<Bytes>>>,
}

impl Table {
    /// Remembers who shall hear about the start `request`.
    pub(crate) fn expect(&self, request: u64, listener: mpsc::Sender<Bytes>) {
        self.pending.borrow_mut().insert(request, listener);
    }

    /// A start succeeded. Nobody may be waiting any more; the process runs.
    pub(crate) fn started(
        &self,
        api: &Rc<Api>,
        request: u64,
        process: messages::Process,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let listener = self.pending.borrow_mut().remove(&request);
        self.enter(api, process, descriptors, listener)
    }

    /// A start failed.
    pub(crate) fn not_started(&self, request: u64, code: Code, message: String) {
        if let Some(listener) = self.pending.borrow_mut().remove(&request) {
            let last = connect::end(Some(&Error::new(code, message)));
            // The queue is empty: nothing was ever sent there.
            listener.try_send(last).ok();
        }
    }

    /// A process of the time before this API.
    pub(crate) fn existing(
        &self,
        api: &Rc<Api>,
        process: messages::Process,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        self.enter(api, process, descriptors, None)
    }

    fn enter(
        &self,
        api: &Rc<Api>,
        process: messages::Process,
        descriptors: Vec<OwnedFd>,
        listener: Option<mpsc::Sender<Bytes>>,
    ) -> io::Result<()> {
        if self.running.borrow().contains_key(&process.id) {
            return Ok(());
        }
        let Streams { sink, sources } = Streams::take(process.wiring, descriptors)?;
        let (end, ended) = watch::channel(process.end);
        let messages::Process { id, pid, command, tag, .. } = process;
        let entry = Rc::new(Process {
            id,
            pid,
            command,
            tag,
            sink: RefCell::new(sink.map(Rc::new)),
            end,
            listeners: RefCell::new(Some(Vec::new())),
            read: Cell::new(0),
            telling: Cell::new(0),
        });
        if let Some(listener) = listener {
            entry.listen(listener);
        }
        self.running.borrow_mut().insert(entry.id, entry.clone());
        super::task(pump::run(api.clone(), entry, sources, ended));
        Ok(())
    }

    /// Init says that a process has ended.
    pub(crate) fn ended(&self, id: u64, end: End) {
        if let Some(process) = self.running.borrow().get(&id) {
            process.end.send_replace(Some(end));
        }
    }

    /// Moves a process whose end was announced to those that lately ended.
    pub(crate) fn retire(&self, process: Rc<Process>) {
        self.running.borrow_mut().remove(&process.id);
        process.sink.borrow_mut().take();
        let mut retained = self.retained.borrow_mut();
        retained.push_back((Instant::now(), process));
        while retained.len() > MOST_RETAINED
            || retained.front().is_some_and(|(since, _)| since.elapsed() > RETAINED)
        {
            retained.pop_front();
        }
    }

    /// Finds a process, running or lately ended.
    pub(crate) fn find(&self, selector: &Selector) -> Result<Rc<Process>, Error> {
        if let Ok(process) = self.find_running(selector) {
            return Ok(process);
        }
        let retained = self.retained.borrow();
        let recent = retained.iter().rev().filter(|(since, _)| since.elapsed() <= RETAINED);
        let mut matching = recent.filter(|(_, process)| process.is(selector));
        matching.next().map(|(_, process)| process.clone()).ok_or_else(|| not_found(selector))
    }

    /// Finds a process that has not ended.
    pub(crate) fn find_running(&self, selector: &Selector) -> Result<Rc<Process>, Error> {
        let running = self.running.borrow();
        // Numbers are used again; the newest is meant.
        let found = running.values().rev().find(|process| process.is(selector) && process.runs());
        found.cloned().ok_or_else(|| not_found(selector))
    }

    /// Everything that runs.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        let info = |process: &Rc<Process>| ProcessInfo {
            config: process.command.clone().into(),
            pid: process.pid,
            tag: process.tag.clone(),
        };
        self.running.borrow().values().filter(|process| process.runs()).map(info).collect()
    }
}

impl Process {
    fn is(&self, selector: &Selector) -> bool {
        match selector {
            Selector::Pid(pid) => self.pid == *pid,
            Selector::Tag(tag) => self.tag.as_ref() == Some(tag),
        }
    }

    fn runs(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// The input, while it is open.
    pub(crate) fn sink(&self) -> Option<Rc<Sink>> {
        self.sink.borrow().clone()
    }

    /// Closes the input once those who write have finished.
    pub(crate) fn close_sink(&self) {
        self.sink.borrow_mut().take();
    }

    /// Adds a listener: it hears the start, and everything from now on.
    pub(crate) fn listen(&self, listener: mpsc::Sender<Bytes>) {
        // The queue of a new listener is empty.
        listener.try_send(pump::message(Event::Start(StartEvent { pid: self.pid }))).ok();
        let mut listeners = self.listeners.borrow_mut();
        match (listeners.as_mut(), *self.end.borrow()) {
            (Some(listeners), _) => listeners.push(listener),
            (None, Some(end)) => {
                listener.try_send(pump::last_words(end)).ok();
            }
            // Listeners are closed only after the end.
            (None, None) => {}
        }
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.listeners.borrow().as_ref().is_some_and(|listeners| !listeners.is_empty())
    }

    /// Sends a message to everyone; waits for the slowest. Who has gone is
    /// forgotten.
    pub(crate) async fn tell(&self, message: &Bytes) {
        let listeners = self.listeners.borrow().clone().unwrap_or_default();
        self.telling.set(self.telling.get() + 1);
        let mut gone = false;
        for listener in &listeners {
            gone |= listener.send(message.clone()).await.is_err();
        }
        self.telling.set(self.telling.get() - 1);
        if gone && let Some(listeners) = self.listeners.borrow_mut().as_mut() {
            listeners.retain(|listener| !listener.is_closed());
        }
    }

    pub(crate) fn is_telling(&self) -> bool {
        self.telling.get() > 0
    }

    /// Counts output, listened to or not.
    pub(crate) fn count(&self, n: usize) {
        self.read.set(self.read.get() + n as u64);
    }

    pub(crate) fn read(&self) -> u64 {
        self.read.get()
    }

    /// Takes all listeners, once; later ones hear only the end.
    pub(crate) fn close(&self) -> Option<Vec<mpsc::Sender<Bytes>>> {
        self.listeners.borrow_mut().take()
    }
}

fn not_found(selector: &Selector) -> Error {
    let text = match selector {
        Selector::Pid(pid) => format!("process with pid {pid} not found"),
        Selector::Tag(tag) => format!("process with tag {tag} not found"),
    };
    Error::new(Code::NotFound, text)
}
