//! What each stream holds that its reader has not taken.
//!
//! yamux counts the bytes of a stream and not its frames, and each frame costs
//! it about a hundred bytes. So [`super::guard`] hands over at most so many
//! small frames that were not read, and joins the rest here until the reader
//! has caught up or there is enough for one large frame.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use bytes::BytesMut;

/// Small frames of one stream that yamux may hold unread.
pub(super) const MAX_SMALL: usize = 1024;
/// So many joined bytes are worth a frame of their own at any time.
pub(super) const ENOUGH: usize = 16 * 1024;

/// The accounts of one session's streams. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Ledger(Arc<Mutex<Books>>);

#[derive(Debug)]
struct Books {
    /// The most streams there may be.
    most: usize,
    streams: HashMap<u32, Account>,
    /// Streams that have something to hand over.
    due: Vec<u32>,
    /// Whoever reads the session, while it waits.
    reader: Option<Waker>,
}

#[derive(Debug, Default)]
struct Account {
    /// Small frames handed over since the reader last found nothing.
    handed: usize,
    joined: BytesMut,
    due: bool,
    /// The peer has said that it says no more.
    finished: bool,
}

impl Account {
    fn ready(&self) -> bool {
        !self.joined.is_empty() && (self.handed < MAX_SMALL || self.joined.len() >= ENOUGH)
    }
}

impl Ledger {
    pub(super) fn new(most: usize) -> Self {
        let books = Books { most, streams: HashMap::new(), due: Vec::new(), reader: None };
        Self(Arc::new(Mutex::new(books)))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing below can leave the books half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream that this side opened.
    pub(super) fn opened(&self, id: u32) {
        self.books().streams.insert(id, Account::default());
    }

    /// A stream that the peer says it opens.
    pub(super) fn announced(&self, id: u32) -> io::Result<()> {
        let mut books = self.books();
        if books.streams.len() >= books.most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer opens too many streams",
            ));
        }
        match books.streams.insert(id, Account::default()) {
            None => Ok(()),
            Some(_) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the peer opens a stream twice"))
            }
        }
    }

    /// The peer has ended a stream in order.
    pub(super) fn finished(&self, id: u32) {
        if let Some(account) = self.books().streams.get_mut(&id) {
            account.finished = true;
        }
    }

    /// Whether the peer has ended a stream in order, and did not break it off.
    pub(super) fn is_finished(&self, id: u32) -> bool {
        self.books().streams.get(&id).is_some_and(|account| account.finished)
    }

    /// Nobody reads it any more.
    pub(super) fn dropped(&self, id: u32) {
        self.books().streams.remove(&id);
    }

    /// Adds the payload of a small frame. Of a stream that is gone it is lost.
    pub(super) fn join(&self, id: u32, payload: &[u8]) {
        let mut books = self.books();
        let Books { streams, due, .. } = &mut *books;
        let Some(account) = streams.get_mut(&id) else { return };
        account.joined.extend_from_slice(payload);
        if account.ready() && !account.due {
            account.due = true;
            due.push(id);
        }
    }

    /// Takes everything joined of one stream, because something follows it.
    pub(super) fn take(&self, id: u32) -> Option<BytesMut> {
        let mut books = self.books();
        let account = books.streams.get_mut(&id)?;
        if account.joined.is_empty() {
            return None;
        }
        account.handed += 1;
        Some(account.joined.split())
    }

    /// The next stream that has something to hand over.
    pub(super) fn next_due(&self) -> Option<u32> {
        let mut books = self.books();
        let id = books.due.pop()?;
        if let Some(account) = books.streams.get_mut(&id) {
            account.due = false;
        }
        Some(id)
    }

    /// The reader of a stream has read all there was.
    pub(super) fn drained(&self, id: u32) {
        let mut books = self.books();
        let Books { streams, due, reader, .. } = &mut *books;
        let Some(account) = streams.get_mut(&id) else { return };
        account.handed = 0;
        if account.ready() && !account.due {
            account.due = true;
            due.push(id);
            if let Some(reader) = reader.take() {
                reader.wake();
            }
        }
    }

    /// Whoever reads the session waits; whether it has to look again first.
    pub(super) fn wait(&self, reader: &Waker) -> bool {
        let mut books = self.books();
        books.reader = Some(reader.clone());
        !books.due.is_empty()
    }
}
