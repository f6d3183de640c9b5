//! What happens below a directory, from inotify.
//!
//! A recursive watch adds directories as they appear. What was put into one
//! before its watch existed is reported as created, perhaps twice; a missed
//! entry would be worse. When the kernel's queue overflows, events are lost and
//! the watch says so once, so that its client looks again.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use guest_protocol::filesystem::{EventType, FilesystemEvent};
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::io::unix::AsyncFd;

use super::{
    entry,
    failure::{Failure, Kind},
};
use crate::account::Accounts;

/// Directories of one recursive watch.
const MAX_DIRECTORIES: usize = 8 * 1024;

/// A watch.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: AsyncFd<OwnedFd>,
    root: PathBuf,
    recursive: bool,
    include_entry: bool,
    /// Path below the root by the kernel's number.
    directories: HashMap<i32, PathBuf>,
}

/// An event as the kernel reports it.
struct Raw {
    watch: i32,
    flags: ReadFlags,
    name: PathBuf,
}

impl Watch {
    /// Begins to watch; from now on nothing is missed.
    pub(crate) fn new(
        root: PathBuf,
        recursive: bool,
        include_entry: bool,
    ) -> Result<Self, Failure> {
        let about = |error: io::Error| Failure::about(&root, &error);
        let metadata = std::fs::metadata(&root).map_err(about)?;
        if !metadata.is_dir() {
            let text = format!("path is not a directory: {}", root.display());
            return Err(Failure::new(Kind::Invalid, text));
        }
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        let inotify = inotify.map_err(|error| limited(&root, error))?;
        // SAFETY: the descriptor is owned by what is registered, so it stays open
        // and the same for as long as that lives.
        let inotify = unsafe { AsyncFd::register(inotify) }.map_err(Failure::internal)?;
        let directories = HashMap::new();
        let mut watch = Self { inotify, root, recursive, include_entry, directories };
        watch.add(PathBuf::new(), &mut Vec::new())?;
        Ok(watch)
    }

    /// Waits for events.
    pub(crate) async fn next(&mut self) -> Result<Vec<FilesystemEvent>, Failure> {
        loop {
            let raw = self.read().await.map_err(Failure::internal)?;
            let mut changes = Vec::new();
            for event in raw {
                self.translate(event, &mut changes)?;
            }
            if !changes.is_empty() {
                return Ok(self.describe(changes));
            }
        }
    }

    async fn read(&self) -> io::Result<Vec<Raw>> {
        self.inotify
            .async_io(tokio::io::Interest::READABLE, |inotify| {
                let mut buffer = [const { MaybeUninit::uninit() }; 8 * 1024];
                let mut reader = inotify::Reader::new(inotify, &mut buffer);
                let mut events = Vec::new();
                loop {
                    match reader.next() {
                        Ok(event) => events.push(Raw {
                            watch: event.wd(),
                            flags: event.events(),
                            name: event
                                .file_name()
                                .map(|name| {
                                    String::from_utf8_lossy(name.to_bytes()).as_ref().into()
                                })
                                .unwrap_or_default(),
                        }),
                        Err(Errno::AGAIN) if !events.is_empty() => return Ok(events),
                        Err(error) => return Err(error.into()),
                    }
                    // What else is in the buffer belongs to this round; a new
                    // read must not happen before these were translated.
                    if reader.is_buffer_empty() {
                        return Ok(events);
                    }
                }
            })
            .await
    }

    fn translate(
        &mut self,
        event: Raw,
        changes: &mut Vec<(PathBuf, EventType)>,
    ) -> Result<(), Failure> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            let text = "events were lost because too much happened: list the directory again";
            return Err(Failure::new(Kind::TooMany, text));
        }
        let Some(directory) = self.directories.get(&event.watch).cloned() else { return Ok(()) };
        if event.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&event.watch);
            return Ok(());
        }
        let path = directory.join(&event.name);
        let is_root = path.as_os_str().is_empty();
        let Some(kind) = kind(event.flags, is_root) else { return Ok(()) };
        changes.push((path.clone(), kind));
        if self.recursive && event.flags.contains(ReadFlags::ISDIR) && !is_root {
            match kind {
                EventType::Create => self.add(path, changes)?,
                // Its watches would go on under a path that is no longer theirs.
                EventType::Rename => self.forget(&path),
                EventType::Write | EventType::Remove | EventType::Chmod => {}
            }
        }
        Ok(())
    }

    /// Watches a directory, and what is below it if that is wanted. Whatever is
    /// found in one that is new becomes an event.
    fn add(
        &mut self,
        path: PathBuf,
        changes: &mut Vec<(PathBuf, EventType)>,
    ) -> Result<(), Failure> {
        let mut waiting = vec![path];
        while let Some(path) = waiting.pop() {
            let is_root = path.as_os_str().is_empty();
            let full = self.root.join(&path);
            let mut flags = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE_SELF
                | WatchFlags::ONLYDIR;
            if !is_root {
                flags |= WatchFlags::DONT_FOLLOW;
            }
            if self.directories.len() >= MAX_DIRECTORIES {
                let text = format!("more than {MAX_DIRECTORIES} directories: watch fewer");
                return Err(Failure::new(Kind::TooMany, text));
            }
            match inotify::add_watch(&self.inotify, &full, flags) {
                Ok(number) => {
                    self.directories.insert(number, path.clone());
                }
                // One below that is gone again, or may not be read.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) if !is_root => continue,
                Err(error) => return Err(limited(&full, error)),
            }
            if !self.recursive {
                continue;
            }
            let Ok(entries) = std::fs::read_dir(&full) else { continue };
            for entry in entries.flatten() {
                let below = path.join(entry.file_name());
                if !is_root {
                    changes.push((below.clone(), EventType::Create));
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }

    fn forget(&mut self, path: &Path) {
        let inotify = &self.inotify;
        self.directories.retain(|number, directory| {
            let gone = directory.starts_with(path);
            if gone {
                // It may be gone by itself already.
                inotify::remove_watch(inotify, *number).ok();
            }
            !gone
        });
    }

    fn describe(&self, changes: Vec<(PathBuf, EventType)>) -> Vec<FilesystemEvent> {
        let accounts = self.include_entry.then(|| Accounts::read().unwrap_or_default());
        let describe = |(path, kind): (PathBuf, EventType)| FilesystemEvent {
            entry: accounts
                .as_ref()
                .and_then(|accounts| entry::describe(&self.root.join(&path), accounts).ok()),
            name: match path.to_string_lossy().into_owned() {
                name if name.is_empty() => ".".to_owned(),
                name => name,
            },
            kind,
        };
        changes.into_iter().map(describe).collect()
    }
}

/// What an event means to a client.
fn kind(flags: ReadFlags, is_root: bool) -> Option<EventType> {
    if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(EventType::Create)
    } else if flags.contains(ReadFlags::MODIFY) {
        Some(EventType::Write)
    } else if flags.contains(ReadFlags::DELETE) {
        Some(EventType::Remove)
    } else if flags.contains(ReadFlags::DELETE_SELF) {
        // Of a directory below, its parent reports it.
        is_root.then_some(EventType::Remove)
    } else if flags.contains(ReadFlags::MOVED_FROM) {
        Some(EventType::Rename)
    } else if flags.contains(ReadFlags::ATTRIB) {
        Some(EventType::Chmod)
    } else {
        None
    }
}

fn limited(path: &Path, error: Errno) -> Failure {
    match error {
        Errno::MFILE | Errno::NOSPC => {
            Failure::new(Kind::TooMany, "too many directories are being watched in this sandbox")
        }
        error => Failure::about(path, &error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn seen(watch: &mut Watch, last: (&str, EventType)) -> Vec<(String, EventType)> {
        let mut seen: Vec<(String, EventType)> = Vec::new();
        while !seen.iter().any(|(name, kind)| (name.as_str(), *kind) == last) {
            let next = tokio::time::timeout(std::time::Duration::from_secs(60), watch.next());
            let events = next.await.expect("an event in time").unwrap();
            seen.extend(events.into_iter().map(|event| (event.name, event.kind)));
        }
        seen
    }

    #[tokio::test]
    async fn a_new_directory_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(folder.path().into(), true, false).unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let all = seen(&mut watch, ("a/b", EventType::Create)).await;
        assert!(all.contains(&("a".into(), EventType::Create)), "{all:?}");
        std::fs::write(folder.path().join("a/b/file"), "x").unwrap();
        let all = seen(&mut watch, ("a/b/file", EventType::Write)).await;
        assert!(all.contains(&("a/b/file".into(), EventType::Create)), "{all:?}");
    }

    #[tokio::test]
    async fn a_moved_directory_has_its_new_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        let mut watch = Watch::new(folder.path().into(), true, true).unwrap();
        std::fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        seen(&mut watch, ("b", EventType::Create)).await;
        std::fs::write(folder.path().join("b/file"), "").unwrap();
        seen(&mut watch, ("b/file", EventType::Create)).await;
        std::fs::remove_file(folder.path().join("b/file")).unwrap();
        seen(&mut watch, ("b/file", EventType::Remove)).await;
    }

    #[tokio::test]
    async fn only_a_directory_can_be_watched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(Watch::new(file, false, false).unwrap_err().kind, Kind::Invalid);
        let missing = Watch::new(folder.path().join("missing"), false, false);
        assert_eq!(missing.unwrap_err().kind, Kind::NotFound);
    }
}
