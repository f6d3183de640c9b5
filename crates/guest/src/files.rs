//! A file worker: file work with exactly the rights of one account.
//!
//! The API parses what the host sends and knows who asks; this process is
//! that account to the kernel. So a path needs no check here: what the account
//! may not do, the kernel refuses. It holds nothing that the account could not
//! read anyway, and the account cannot trace it.
//!
//! File calls run on threads, because a file system may answer slowly or never.

mod directories;
mod download;
mod entry;
mod failure;
mod metadata;
mod moving;
mod multipart;
pub(crate) mod path;
pub(crate) mod query;
mod service;
mod upload;
mod watch;
pub(crate) mod watchers;

use std::{
    io,
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    path::PathBuf,
    rc::Rc,
};

use self::watchers::Watchers;
use crate::{account::Accounts, channel::channel, messages::Serve, privilege};

/// More than the API sends at the same time, so that a slow client does not
/// keep the others waiting.
const THREADS: usize = 160;

/// What a worker knows.
#[derive(Debug)]
pub(crate) struct Worker {
    uid: u32,
    gid: u32,
    home: PathBuf,
    watchers: Watchers,
}

/// Runs the worker of an account with the channel that the API speaks on.
pub(crate) fn run(uid: u32) -> io::Result<()> {
    let accounts = Accounts::read()?;
    let account = accounts
        .by_uid(uid)
        .ok_or_else(|| io::Error::other(format!("account {uid} does not exist")))?;
    if uid != 0 {
        privilege::give_up_everything(uid, account.gid, &accounts.groups_of(&account))?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // SAFETY: init passes a socket to this role as the descriptor 3, and nothing
    // else in this process has taken it.
    let stream = unsafe { StdStream::from(OwnedFd::from_raw_fd(3)) };
    crate::runtime::run(THREADS, async {
        let (_sender, mut receiver) = channel(stream)?;
        let worker = Rc::new(Worker {
            uid,
            gid: account.gid,
            home: PathBuf::from(account.home),
            watchers: Watchers::default(),
        });
        while let Some((Serve, connections)) = receiver.receive().await? {
            for connection in connections {
                task(service::serve(worker.clone(), connection));
            }
        }
        // The API is gone, and a new one starts a new worker.
        Ok(())
    })
}

impl Worker {
    fn resolve(&self, raw: &str) -> PathBuf {
        path::resolve(raw, &self.home)
    }
}

/// Starts a task that belongs to this process's life.
fn task(future: impl Future<Output = ()> + 'static) {
    drop(tokio::task::spawn_local(future));
}
