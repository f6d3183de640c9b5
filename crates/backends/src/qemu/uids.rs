//! A user of its own for each live machine.
//!
//! Whoever holds the lock on a user's file has the user. The descriptor goes
//! to the machine, so the user is taken as long as the machine or its maker is
//! there, and free after a crash of either. A machine that was taken over can
//! close its descriptor: so a second file, which no machine has open, names the
//! machine's first process, and a user whose process lives is taken too. The
//! files are shared by every Coldframe process of the host, whatever its state
//! folder.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::fs::FlockOperation;

use super::{pidfd, record::Process};

/// How many users there are.
const COUNT: u32 = 65_536;

/// The users that machines can have.
#[derive(Debug)]
pub(super) struct Uids {
    folder: PathBuf,
    base: u32,
    /// Where to look first: a user is not used again at once.
    next: AtomicU32,
}

/// A user that nobody else has, for as long as a copy of the lock is open.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) uid: u32,
    pub(super) lock: OwnedFd,
}

impl Uids {
    /// Takes the folder of the locks and the first user.
    pub(super) fn open(folder: PathBuf, base: u32) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        // Processes that start together should not all try the same users.
        let next = AtomicU32::new(std::process::id().wrapping_mul(251) % COUNT);
        Ok(Self { folder, base, next })
    }

    /// Takes a free user.
    pub(super) fn claim(&self) -> io::Result<Claim> {
        for _ in 0..COUNT {
            let uid = self.base + self.next.fetch_add(1, Ordering::Relaxed) % COUNT;
            if let Some(lock) = self.lock(uid)? {
                return Ok(Claim { uid, lock: lock.into() });
            }
        }
        Err(io::Error::other("every user for sandboxes is taken"))
    }

    /// Says which process the user is for. To be called before the claim goes.
    pub(super) fn occupy(&self, uid: u32, process: &Process) -> io::Result<()> {
        // A torn text names nobody, which is what a missing one does.
        fs::write(self.owner(uid), serde_json::to_vec(process)?)
    }

    /// Removes the files of a user whose machine is gone.
    pub(super) fn release(&self, uid: u32) {
        if let Ok(Some(_lock)) = self.lock(uid) {
            // Files that stay behind are found free by the next claim.
            fs::remove_file(self.owner(uid)).unwrap_or_default();
            fs::remove_file(self.path(uid)).unwrap_or_default();
        }
    }

    /// Removes the files that processes left behind which were killed between
    /// taking a user and writing it down.
    pub(super) fn sweep(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let ours = self.base..self.base.saturating_add(COUNT);
            if let Some(uid) = uid.filter(|uid| ours.contains(uid)) {
                self.release(uid);
            }
        }
    }

    fn lock(&self, uid: u32) -> io::Result<Option<File>> {
        let path = self.path(uid);
        let file = File::options().create(true).append(true).mode(0o600).open(&path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Somebody may have removed the file between opening and locking it.
        // The lock then is on a file that nobody else will find.
        let same = fs::metadata(&path).is_ok_and(|now| {
            file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (now.dev(), now.ino()))
        });
        Ok((same && !self.is_occupied(uid)).then_some(file))
    }

    /// Whether the process lives that the user is for. One that has ended and
    /// that its parent has not taken note of yet does nothing any more.
    fn is_occupied(&self, uid: u32) -> bool {
        let text = fs::read(self.owner(uid)).unwrap_or_default();
        let process = serde_json::from_slice::<Process>(&text).ok();
        let handle = process.and_then(|process| process.open());
        handle.is_some_and(|handle| !pidfd::wait(&handle, Duration::ZERO).unwrap_or(false))
    }

    fn owner(&self, uid: u32) -> PathBuf {
        self.folder.join(format!("{uid}.process"))
    }

    fn path(&self, uid: u32) -> PathBuf {
        self.folder.join(uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_live_machines_never_share_a_user() {
        let folder = tempfile::tempdir().unwrap();
        let one = Uids::open(folder.path().into(), 1000).unwrap();
        let other = Uids::open(folder.path().into(), 1000).unwrap();
        let claims: Vec<_> =
            (0..50).flat_map(|_| [one.claim().unwrap(), other.claim().unwrap()]).collect();
        let mut uids: Vec<_> = claims.iter().map(|claim| claim.uid).collect();
        uids.sort_unstable();
        uids.dedup();
        assert_eq!(uids.len(), 100);
    }

    #[test]
    fn a_user_is_taken_as_long_as_a_copy_of_the_lock_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let uids = Uids::open(folder.path().into(), 1000).unwrap();
        let claim = uids.claim().unwrap();
        let machine = claim.lock.try_clone().unwrap();
        let uid = claim.uid;
        drop(claim);
        assert!(uids.lock(uid).unwrap().is_none());
        uids.release(uid);
        assert!(folder.path().join(uid.to_string()).exists());
        drop(machine);
        uids.release(uid);
        assert!(!folder.path().join(uid.to_string()).exists());
    }

    /// S4: a machine that closes its lock does not make room for another one
    /// with its user.
    #[test]
    fn a_user_is_taken_as_long_as_its_machine_lives() {
        let folder = tempfile::tempdir().unwrap();
        let uids = Uids::open(folder.path().into(), 1000).unwrap();
        let mut machine = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(machine.id()).unwrap();
        let claim = uids.claim().unwrap();
        let uid = claim.uid;
        uids.occupy(uid, &Process::observe(pid).unwrap()).unwrap();
        drop(claim);
        assert!(uids.lock(uid).unwrap().is_none());
        uids.release(uid);
        uids.sweep();
        assert!(uids.lock(uid).unwrap().is_none());
        let handle = Process::observe(pid).unwrap().open().unwrap();
        machine.kill().unwrap();
        // It has ended, and nobody has taken its result: that waits for init
        // where the maker of the machine is gone.
        assert!(pidfd::wait(&handle, Duration::from_secs(60)).unwrap());
        uids.sweep();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        machine.wait().unwrap();
        assert!(uids.lock(uid).unwrap().is_some());
        fs::write(uids.owner(uid), "{\"pid\":").unwrap();
        assert!(uids.lock(uid).unwrap().is_some());
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let uids = Uids::open(folder.path().into(), 1000).unwrap();
        let live = uids.claim().unwrap();
        drop(uids.claim().unwrap());
        fs::write(folder.path().join("5"), "another range").unwrap();
        uids.sweep();
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        let mut expected = [live.uid.to_string().into(), std::ffi::OsString::from("5")];
        expected.sort();
        assert_eq!(left, expected);
    }
}
