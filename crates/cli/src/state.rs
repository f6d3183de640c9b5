//! The folder for everything that is kept.
//!
//! Only its owner may enter it: it holds the database, tokens and the sockets of
//! machines. One server at a time has it, by a lock that ends with the process
//! however that ends. `coldframe run` has a folder of its own in it
//! ([`crate::local`]) and needs no lock.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::Path,
    time::{Duration, Instant},
};

use domain::token::Token;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::error::{Failure, Kind, Outcome};

/// The file that is locked.
const LOCK: &str = "server.lock";
/// How long the last server may take to let go of it, and how often that is seen.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The lock of a running server.
#[derive(Debug)]
pub(crate) struct Owned {
    _lock: File,
}

/// Makes a folder that only we can enter, or checks that it is one.
pub(crate) fn private_folder(path: &Path) -> Outcome<()> {
    let shown = path.display();
    let unusable = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => Kind::Refused,
            _ => Kind::Internal,
        };
        Failure::new(kind, format!("{shown} cannot be used: {error}"))
    };
    if !path.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
    }
    let metadata = fs::symlink_metadata(path).map_err(unusable)?;
    if !metadata.is_dir() {
        return Err(Failure::refused(format!("{shown} is not a folder")));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::refused(format!("{shown} belongs to another account"))
            .hint("run this as that account, or choose another folder with --state-dir"));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(unusable)?;
    }
    Ok(())
}

/// Makes a folder that is not there; what holds no secret may be read by others.
pub(crate) fn folder(path: &Path) -> Outcome<()> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| {
        Failure::new(Kind::Internal, format!("{} cannot be made: {error}", path.display()))
    })
}

/// Takes the state folder for a server.
///
/// A server that was killed a moment ago may still be on its way out, so a taken
/// folder is asked for again for a while.
pub(crate) fn own(state: &Path) -> Outcome<Owned> {
    own_within(state, LOCK_WAIT)
}

fn own_within(state: &Path, patience: Duration) -> Outcome<Owned> {
    private_folder(state)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(state.join(LOCK))?;
    let until = Instant::now() + patience;
    let locked = loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            locked => break locked,
        }
    };
    match locked {
        Ok(()) => Ok(Owned { _lock: lock }),
        Err(Errno::WOULDBLOCK) => {
            let message = format!("a server already uses {}", state.display());
            Err(Failure::refused(message)
                .hint("stop it, or choose another folder with --state-dir"))
        }
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Puts a token where its owner finds it: whole or not at all, and on disk.
pub(crate) fn keep_token(path: &Path, token: &Token) -> io::Result<()> {
    let new = path.with_extension("new");
    if new.exists() {
        fs::remove_file(&new)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(file, "{}", token.expose())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_never_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = own(folder.path()).unwrap();
        let second = own_within(folder.path(), Duration::ZERO);
        assert_eq!(second.unwrap_err().kind, Kind::Refused);
        drop(first);
        assert!(own(folder.path()).is_ok());
    }

    /// A start right after a kill waits for what the kill has not finished.
    #[test]
    fn a_server_that_is_on_its_way_out_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = own(folder.path()).unwrap();
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(LOCK_PAUSE * 3);
            drop(first);
        });
        assert!(own(folder.path()).is_ok());
        leaving.join().unwrap();
    }

    #[test]
    fn others_cannot_enter_the_folder_or_read_a_token() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        private_folder(folder.path()).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
        let path = folder.path().join("token");
        keep_token(&path, &Token::from_random([1; 32])).unwrap();
        keep_token(&path, &Token::from_random([2; 32])).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim(), Token::from_random([2; 32]).expose());
    }
}
