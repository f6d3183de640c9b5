//! Watches of clients: streamed, or collected until they are fetched.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use guest_protocol::{
    connect::{self, Error},
    filesystem::{FilesystemEvent, WatchMessage, WatchRequest},
    process::Empty,
};
use hyper::{Request, Response, body::Incoming};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Worker,
    failure::{Failure, Kind},
    watch::Watch,
};
use crate::http::{
    body::Body,
    events::{self, Manner},
    rpc,
};

/// Collecting watchers of one account,
const MOST: usize = 64;
/// of which one that nobody asked about for so long may be dropped for a new one.
const IDLE: Duration = Duration::from_secs(600);
/// Events that wait to be fetched.
const MOST_EVENTS: usize = 4096;

/// The collecting watchers of a worker.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    last: Cell<u64>,
    all: RefCell<BTreeMap<String, Collecting>>,
}

#[derive(Debug)]
struct Collecting {
    events: Rc<RefCell<Collected>>,
    asked: Instant,
    task: JoinHandle<()>,
}

/// What has happened, up to a failure that ended it or lost some of it.
#[derive(Debug, Default)]
struct Collected {
    events: VecDeque<FilesystemEvent>,
    failure: Option<Failure>,
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The account that made a watcher, which its id begins with.
pub(crate) fn owner(id: &str) -> Result<u32, Error> {
    id.split_once('-').and_then(|(uid, _)| uid.parse().ok()).ok_or_else(|| not_found(id).into())
}

impl Watchers {
    /// Begins to collect; returns the new watcher's id.
    pub(crate) async fn create(
        &self,
        worker: &Worker,
        request: WatchRequest,
    ) -> Result<String, Failure> {
        self.make_room()?;
        let mut watch = begin(worker, request)?;
        let events = Rc::new(RefCell::new(Collected::default()));
        let sink = events.clone();
        let task = tokio::task::spawn_local(async move {
            loop {
                let outcome = watch.next().await;
                let mut sink = sink.borrow_mut();
                match outcome {
                    Ok(events) => sink.add(events),
                    Err(failure) => {
                        let goes_on = failure.kind == Kind::TooMany;
                        sink.failure = Some(failure);
                        if !goes_on {
                            return;
                        }
                    }
                }
            }
        });
        self.last.set(self.last.get() + 1);
        let id = format!("{}-{}", worker.uid, self.last.get());
        let collecting = Collecting { events, asked: Instant::now(), task };
        self.all.borrow_mut().insert(id.clone(), collecting);
        Ok(id)
    }

    /// Takes what has happened since the last call. A failure is told once.
    pub(crate) fn take(&self, id: &str) -> Result<Vec<FilesystemEvent>, Failure> {
        let mut all = self.all.borrow_mut();
        let watcher = all.get_mut(id).ok_or_else(|| not_found(id))?;
        watcher.asked = Instant::now();
        let mut collected = watcher.events.borrow_mut();
        match collected.failure.take() {
            Some(failure) => {
                collected.events.clear();
                Err(failure)
            }
            None => Ok(collected.events.drain(..).collect()),
        }
    }

    /// Ends a watcher.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Failure> {
        self.all.borrow_mut().remove(id).map(drop).ok_or_else(|| not_found(id))
    }

    fn make_room(&self) -> Result<(), Failure> {
        let mut all = self.all.borrow_mut();
        if all.len() < MOST {
            return Ok(());
        }
        let oldest = all.iter().min_by_key(|(_, watcher)| watcher.asked);
        let idle = oldest.filter(|(_, watcher)| watcher.asked.elapsed() > IDLE);
        match idle.map(|(id, _)| id.clone()) {
            Some(id) => {
                all.remove(&id);
                Ok(())
            }
            None => Err(Failure::new(Kind::TooMany, format!("{MOST} watchers exist: remove some"))),
        }
    }
}

impl Collected {
    fn add(&mut self, events: Vec<FilesystemEvent>) {
        if self.events.len() + events.len() > MOST_EVENTS {
            self.events.clear();
            let text = "events were lost because nobody fetched them: list the directory again";
            self.failure = Some(Failure::new(Kind::TooMany, text));
            return;
        }
        self.events.extend(events);
    }
}

/// Answers `WatchDir` with a stream. A slow reader fills the kernel's queue,
/// which is bounded, and is told when it overflows.
pub(crate) async fn stream(worker: &Rc<Worker>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let begun = async {
        let request: WatchRequest = rpc::stream_request(body).await?;
        Ok::<_, Error>(begin(worker, request)?)
    };
    let mut watch = match begun.await {
        Ok(watch) => watch,
        Err(error) => return events::refuse(&error),
    };
    let (sender, messages) = mpsc::channel(events::QUEUE);
    super::task(async move {
        if sender.send(message(WatchMessage::Start(Empty {}))).await.is_err() {
            return;
        }
        loop {
            let outcome = tokio::select! {
                () = sender.closed() => return,
                outcome = watch.next() => outcome,
            };
            match outcome {
                Ok(events) => {
                    for event in events {
                        let message = message(WatchMessage::Filesystem(Box::new(event)));
                        if sender.send(message).await.is_err() {
                            return;
                        }
                    }
                }
                Err(failure) => {
                    sender.send(connect::end(Some(&failure.into()))).await.ok();
                    return;
                }
            }
        }
    });
    let manner = Manner {
        keepalive: events::keepalive(&head.headers),
        message: message(WatchMessage::Keepalive(Empty {})),
        deadline: events::deadline(&head.headers),
    };
    events::answer(messages, manner).await
}

/// Adding watches is quick unless the file system is the workload's own; then
/// it delays only what this account does.
fn begin(worker: &Worker, request: WatchRequest) -> Result<Watch, Failure> {
    Watch::new(worker.resolve(&request.path), request.recursive, request.include_entry)
}

fn message(message: WatchMessage) -> Bytes {
    // Texts and numbers always serialise; an end is what remains.
    connect::message(&message).unwrap_or_else(|_| connect::end(None))
}

fn not_found(id: &str) -> Failure {
    let id: String = id.chars().take(64).collect();
    Failure::new(Kind::NotFound, format!("watcher {id} not found"))
}

#[cfg(test)]
mod tests {
    use guest_protocol::{connect::Code, filesystem::EventType};

    use super::*;

    #[test]
    fn a_watcher_knows_its_account() {
        assert_eq!(owner("1000-7").unwrap(), 1000);
        assert_eq!(owner("seven").unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn lost_events_are_told() {
        let event = FilesystemEvent { name: "x".into(), kind: EventType::Write, entry: None };
        let mut collected = Collected::default();
        collected.add(vec![event.clone(); MOST_EVENTS]);
        assert!(collected.failure.is_none());
        collected.add(vec![event]);
        assert_eq!(collected.failure.unwrap().kind, Kind::TooMany);
        assert!(collected.events.is_empty());
    }
}
