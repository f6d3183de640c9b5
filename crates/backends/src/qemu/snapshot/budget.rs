//! How much of the host's memory loaded snapshots may take.
//!
//! A loaded snapshot is a file in memory that machines map. It takes what it
//! holds as long as anyone holds the file: this process, or a machine that an
//! earlier server started from it. So the budget counts files, each once, at
//! what they take now.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::qemu::memfd;

/// The part of the host's memory that is used unless said otherwise.
const SHARE: u64 = 4;
const MIB: u64 = 1024 * 1024;

/// Counts loaded snapshots.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// Promised to loads that are going on.
    promised: u64,
    files: Vec<Weak<OwnedFd>>,
}

/// Room for one load, given back when this goes.
#[derive(Debug)]
pub(super) struct Promise {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of `limit` bytes, or of a share of the host's memory.
    pub(super) fn open(limit: Option<u64>) -> io::Result<Self> {
        let limit = match limit {
            Some(limit) => limit,
            None => host_bytes()? / SHARE,
        };
        Ok(Self { limit, used: Mutex::default() })
    }

    /// Room for `bytes` more, or a sentence that says why there is none.
    pub(super) fn promise(self: &Arc<Self>, bytes: u64) -> Result<Promise, String> {
        let mut used = self.used();
        let free = self.limit.saturating_sub(used.bytes());
        if bytes > free {
            return Err(format!(
                "loading the snapshot takes {} MiB, and {} of the {} MiB for loaded snapshots are \
                 free on this host; end sandboxes that were started from snapshots, or raise \
                 the setting snapshot_memory_mb",
                bytes.div_ceil(MIB),
                free / MIB,
                self.limit / MIB,
            ));
        }
        used.promised += bytes;
        Ok(Promise { budget: Arc::clone(self), bytes })
    }

    /// Counts a file for as long as it is held.
    pub(super) fn count(&self, file: &Arc<OwnedFd>) {
        self.used().files.push(Arc::downgrade(file));
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn bytes(&mut self) -> u64 {
        self.files.retain(|file| file.strong_count() > 0);
        let files = self.files.iter().filter_map(Weak::upgrade);
        // Two holders of one file do not take it twice.
        let taken: BTreeMap<u64, u64> = files
            .filter_map(|file| {
                let number = rustix::fs::fstat(&file).ok()?.st_ino;
                Some((number, memfd::used_bytes(file.as_fd()).ok()?))
            })
            .collect();
        self.promised + taken.values().sum::<u64>()
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.budget.used().promised -= self.bytes;
    }
}

fn host_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/meminfo lacks MemTotal"))?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: usize) -> Arc<OwnedFd> {
        Arc::new(memfd::sealed("test", &[&vec![1; bytes]]).unwrap())
    }

    #[test]
    fn a_file_counts_once_and_as_long_as_it_is_held() {
        let budget = Arc::new(Budget::open(Some(4 * MIB)).unwrap());
        let one = file(2 * MIB as usize);
        let same = Arc::new(one.try_clone().unwrap());
        budget.count(&one);
        budget.count(&same);
        assert!(budget.promise(2 * MIB).is_ok());
        let promise = budget.promise(MIB).unwrap();
        let refusal = budget.promise(2 * MIB).unwrap_err();
        assert!(refusal.contains("takes 2 MiB, and 1 of the 4 MiB"), "{refusal}");
        drop(promise);
        drop(one);
        assert!(budget.promise(3 * MIB).is_err());
        drop(same);
        assert!(budget.promise(4 * MIB).is_ok());
    }

    #[test]
    fn unless_said_otherwise_it_is_a_quarter_of_the_host() {
        let budget = Budget::open(None).unwrap();
        assert_eq!(budget.limit, host_bytes().unwrap() / 4);
    }
}
