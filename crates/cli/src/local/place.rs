//! The private folder of one `coldframe run`.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use domain::base32;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::keeper::Keeper;
use crate::{
    config::Config,
    error::{Failure, Kind, Outcome},
    state::private_folder,
};

const PREFIX: &str = "run-";
const LOCK: &str = ".lock";

/// A folder that is ours while this value lives.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    lock_path: PathBuf,
    _lock: File,
    _keeper: Option<Keeper>,
}

impl Place {
    /// Makes a folder in the state folder, with a keeper.
    pub(crate) fn make(config: &Config) -> Outcome<Self> {
        let state = &config.state_dir;
        private_folder(state)?;
        loop {
            let mut random = [0; 5];
            super::random(&mut random);
            let name = format!("{PREFIX}{}-{}", std::process::id(), base32::encode(&random));
            let lock_path = state.join(format!("{name}{LOCK}"));
            let mut options = OpenOptions::new();
            let lock = options.write(true).create_new(true).mode(0o600).open(&lock_path)?;
            // Between the two lines somebody may have found the file unlocked
            // and removed it; then the lock is on a file that has no name.
            let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            if !locked || lock.metadata()?.nlink() == 0 {
                continue;
            }
            let folder = state.join(&name);
            DirBuilder::new().mode(0o700).create(&folder)?;
            let keeper = Keeper::start(config, &name)?;
            return Ok(Self { folder, lock_path, _lock: lock, _keeper: Some(keeper) });
        }
    }

    /// Takes over the folder called `name`, if nobody has it any more.
    pub(super) fn take(state: &Path, name: &str) -> io::Result<Option<Self>> {
        Self::locked(state, name, FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits until nobody has the folder called `name`, and takes it over.
    ///
    /// The kernel closes what a killed process had open in an order of its own:
    /// that the pipe to it is closed does not mean that its lock is free yet.
    pub(super) fn inherit(state: &Path, name: &str) -> io::Result<Option<Self>> {
        Self::locked(state, name, FlockOperation::LockExclusive)
    }

    fn locked(state: &Path, name: &str, operation: FlockOperation) -> io::Result<Option<Self>> {
        let lock_path = state.join(format!("{name}{LOCK}"));
        let lock = match OpenOptions::new().write(true).open(&lock_path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match flock(&lock, operation) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        if lock.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        Ok(Some(Self { folder: state.join(name), lock_path, _lock: lock, _keeper: None }))
    }

    /// The names of all such folders below the state folder.
    pub(super) fn names(state: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(state)? {
            let name = entry?.file_name();
            let name = name.to_str().filter(|name| name.starts_with(PREFIX));
            names.extend(name.and_then(|name| name.strip_suffix(LOCK)).map(str::to_owned));
        }
        Ok(names)
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Removes the folder. Nothing that was made for it may be left.
    pub(crate) fn remove(self) -> Outcome<()> {
        let gone = |result: io::Result<()>, path: &Path| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let message = format!("{} cannot be removed: {error}", path.display());
                Err(Failure::new(Kind::Internal, message))
            }
            Ok(()) | Err(_) => Ok(()),
        };
        gone(fs::remove_dir_all(&self.folder), &self.folder)?;
        // Last: without its lock file, nobody would look for the folder.
        gone(fs::remove_file(&self.lock_path), &self.lock_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(state: &Path, name: &str) -> Place {
        let lock_path = state.join(format!("{name}{LOCK}"));
        let lock = File::create_new(&lock_path).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        fs::create_dir(state.join(name)).unwrap();
        Place { folder: state.join(name), lock_path, _lock: lock, _keeper: None }
    }

    #[test]
    fn a_folder_is_taken_over_only_when_its_owner_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let owner = place(state.path(), "run-1-a");
        assert_eq!(Place::names(state.path()).unwrap(), ["run-1-a"]);
        assert!(Place::take(state.path(), "run-1-a").unwrap().is_none());
        drop(owner);
        let taken = Place::take(state.path(), "run-1-a").unwrap().expect("free");
        taken.remove().unwrap();
        assert!(Place::take(state.path(), "run-1-a").unwrap().is_none());
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    }
}
