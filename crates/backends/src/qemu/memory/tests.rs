//! A process that is its own machine, so that no machine is needed.

use std::fs;

use proptest::prelude::*;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::*;

/// A file of `pages` pages, mapped privately by this process.
pub(in crate::qemu) struct Mapped {
    pub(in crate::qemu) memory: Memory,
    base: *mut u8,
    bytes: usize,
}

impl Mapped {
    pub(in crate::qemu) fn new(pages: usize, of_file: &[usize], own: &[usize]) -> Self {
        let bytes = pages * PAGE;
        let file = memfd::memory("test", bytes as u64).unwrap();
        for page in of_file {
            rustix::io::pwrite(&file, &[1; PAGE], (page * PAGE) as u64).unwrap();
        }
        memfd::seal(file.as_fd()).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping in a place that the kernel chooses.
        let base = unsafe {
            mmap(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE, &file, 0).unwrap()
        };
        let base: *mut u8 = base.cast();
        let process = Process::observe(i32::try_from(std::process::id()).unwrap()).unwrap();
        let status = rustix::fs::fstat(&file).unwrap();
        let device = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mappings = mappings(&maps, device, status.st_ino, pages as u64).unwrap();
        let memory = Memory { process, pages: pages as u64, file, mappings };
        let mapped = Self { memory, base, bytes };
        own.iter().for_each(|page| mapped.fill(*page, 2));
        mapped
    }

    /// Writes to a page, which makes it a copy of this process.
    pub(in crate::qemu) fn fill(&self, page: usize, byte: u8) {
        assert!((page + 1) * PAGE <= self.bytes);
        // SAFETY: inside of the mapping, which nobody else knows.
        unsafe { self.base.add(page * PAGE).write_bytes(byte, PAGE) };
    }

    /// Everything that is used, by page: what it holds.
    fn contents(&self) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        for piece in self.memory.used().unwrap() {
            let pages: usize = piece.runs.iter().map(|run| run.pages as usize).sum();
            assert!(pages <= PIECE_PAGES);
            let mut buffer = vec![0; pages * PAGE];
            self.memory.read(&piece, &mut buffer).unwrap();
            let numbers = piece.runs.iter().flat_map(|run| run.first..run.first + run.pages);
            for (number, page) in numbers.zip(buffer.chunks(PAGE)) {
                assert!(page.iter().all(|byte| *byte == page[0]));
                found.push((number, page[0]));
            }
        }
        found.sort_unstable();
        found
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing points into it any more.
        unsafe { munmap(self.base.cast(), self.bytes).unwrap() };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn what_is_read_is_what_is_used(
        pages in 1usize..700,
        of_file in prop::collection::btree_set(0usize..700, 0..300),
        own in prop::collection::btree_set(0usize..700, 0..300),
    ) {
        let below = |set: &std::collections::BTreeSet<usize>| {
            set.iter().copied().filter(|page| *page < pages).collect::<Vec<_>>()
        };
        let (of_file, own) = (below(&of_file), below(&own));
        let mapped = Mapped::new(pages, &of_file, &own);
        let expected: Vec<(u32, u8)> = (0..pages)
            .filter_map(|page| match (own.contains(&page), of_file.contains(&page)) {
                (true, _) => Some((page as u32, 2)),
                (false, true) => Some((page as u32, 1)),
                (false, false) => None,
            })
            .collect();
        prop_assert_eq!(mapped.contents(), expected);
    }
}

#[test]
fn looking_fills_no_hole() {
    let mapped = Mapped::new(600, &[3], &[5, 599]);
    let before = memfd::used_bytes(mapped.memory.file.as_fd()).unwrap();
    mapped.contents();
    assert_eq!(memfd::used_bytes(mapped.memory.file.as_fd()).unwrap(), before);
}

/// What QEMU says of itself is checked.
#[test]
fn mappings_that_overlap_or_reach_too_far_are_refused() {
    let line = |from: u64, to: u64, offset: u64| {
        format!("{from:x}-{to:x} rw-p {offset:08x} 00:01 77 /memfd:x (deleted)\n")
    };
    let read = |text: &str| mappings(text, (0, 1), 77, 4);
    let whole = line(0x1000, 0x5000, 0);
    assert_eq!(read(&whole).unwrap().len(), 1);
    assert_eq!(read(&(line(0x9000, 0xa000, 0x3000) + &line(0x1000, 0x2000, 0))).unwrap().len(), 2);
    assert!(read(&(whole.clone() + &line(0x9000, 0xa000, 0x1000))).is_err());
    assert!(read(&line(0x1000, 0x6000, 0)).is_err());
    assert!(read("").is_err());
    assert!(read(&whole.replace(" 77 ", " 78 ")).is_err());
    for torn in ["1000", "1000-2000", "zz-yy rw-p 0 00:01 77", "2000-1000 rw-p 0 00:01 77"] {
        assert!(read(torn).is_err(), "{torn}");
    }
}
