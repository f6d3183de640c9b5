//! Reading the memory of a machine that stands still.
//!
//! A machine maps a sealed file privately: a page that it wrote to is a copy of
//! its own, every other page is the file's. The kernel tells which
//! (`/proc/PID/pagemap`), so what is read is the used pages and nothing else;
//! looking at a hole of the file would fill it.
//!
//! The machine may have been taken over. Its descriptor is believed to be its
//! memory's file only if it is sealed and as large as it should be, and where it
//! says it maps the file is checked before it is used. What it can reach by a
//! lie is that its own snapshot holds other bytes.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::SeekFrom,
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use super::{command::number, memfd, record::Process};

/// What memory is looked at in.
pub(super) const PAGE: usize = 4096;
/// The most pages that are read as one.
pub(super) const PIECE_PAGES: usize = 256;
/// The longest list of mappings that is read.
const MAX_MAPS: u64 = 16 * 1024 * 1024;
/// Bits of the kernel's word about a page.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// How many of these words are read at once.
const WORDS: usize = 64 * 1024;

/// The memory of one machine.
#[derive(Debug)]
pub(super) struct Memory {
    process: Process,
    pages: u64,
    file: OwnedFd,
    mappings: Vec<Mapping>,
}

/// A part of the file, and where the machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    address: u64,
    first_page: u64,
    pages: u64,
}

/// Pages that follow each other, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) pages: u32,
}

/// Up to [`PIECE_PAGES`] pages that are read as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    source: Source,
    pub(super) runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Copies of the machine.
    Machine,
    /// The file that it maps.
    File,
}

impl Run {
    pub(super) fn bytes(self) -> usize {
        self.pages as usize * PAGE
    }

    pub(super) fn offset(self) -> u64 {
        u64::from(self.first) * PAGE as u64
    }
}

impl Memory {
    /// The memory of `bytes` bytes of the machine that `process` is.
    pub(super) fn of(process: &Process, bytes: u64) -> io::Result<Self> {
        let handle = process.open().ok_or_else(|| io::Error::other("the machine has ended"))?;
        let file = pidfd_getfd(&handle, number::MEMORY, PidfdGetfdFlags::empty())?;
        if !memfd::is_sealed(file.as_fd()) || memfd::length(file.as_fd())? != bytes {
            return Err(io::Error::other("the machine's memory is not the file it was given"));
        }
        let status = rustix::fs::fstat(&file)?;
        let device = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
        let mut maps = String::new();
        let listing = File::open(format!("/proc/{}/maps", process.pid))?;
        listing.take(MAX_MAPS).read_to_string(&mut maps)?;
        let pages = bytes / PAGE as u64;
        let mappings = mappings(&maps, device, status.st_ino, pages)?;
        Ok(Self { process: process.clone(), pages, file, mappings })
    }

    /// The pages that may hold something, in pieces.
    pub(super) fn used(&self) -> io::Result<Vec<Piece>> {
        let mut own = Pieces::new(Source::Machine);
        let mut shared = Pieces::new(Source::File);
        let pagemap = File::open(format!("/proc/{}/pagemap", self.process.pid))?;
        let mut words = vec![0; WORDS * 8];
        let mut data = Data { file: &self.file, data: 0..0, end: self.pages };
        let mut unmapped_from = 0;
        for mapping in &self.mappings {
            data.collect(unmapped_from, mapping.first_page, &mut shared)?;
            unmapped_from = mapping.first_page + mapping.pages;
            let mut done = 0;
            while done < mapping.pages {
                let count = (mapping.pages - done).min(WORDS as u64);
                let words = &mut words[..count as usize * 8];
                let at = (mapping.address / PAGE as u64 + done) * 8;
                pagemap.read_exact_at(words, at)?;
                // Of the pages since here it is not known yet that they are copies.
                let mut of_file = mapping.first_page + done;
                for (word, page) in words.chunks_exact(8).zip(mapping.first_page + done..) {
                    let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                    if word & (PRESENT | SWAPPED) != 0 && word & OF_FILE == 0 {
                        data.collect(of_file, page, &mut shared)?;
                        own.add(page);
                        of_file = page + 1;
                    }
                }
                done += count;
                data.collect(of_file, mapping.first_page + done, &mut shared)?;
            }
        }
        data.collect(unmapped_from, self.pages, &mut shared)?;
        let mut pieces = own.pieces;
        pieces.append(&mut shared.pieces);
        Ok(pieces)
    }

    /// Reads a piece into `buffer`, whose length is the piece's.
    pub(super) fn read(&self, piece: &Piece, buffer: &mut [u8]) -> io::Result<()> {
        match piece.source {
            Source::Machine => self.read_machine(&piece.runs, buffer),
            Source::File => {
                let mut rest = buffer;
                for run in &piece.runs {
                    let (part, after) = rest.split_at_mut(run.bytes());
                    read_at(&self.file, part, run.offset())?;
                    rest = after;
                }
                Ok(())
            }
        }
    }

    /// Whether what was read can only have come from the machine.
    pub(super) fn still_there(&self) -> io::Result<()> {
        match self.process.open() {
            Some(_) => Ok(()),
            None => Err(io::Error::other("the machine ended while it was captured")),
        }
    }

    fn read_machine(&self, runs: &[Run], buffer: &mut [u8]) -> io::Result<()> {
        let mut remote = Vec::with_capacity(runs.len());
        for run in runs {
            // A run lies within one mapping: pages were found mapping by mapping,
            // but neighbours may have been joined.
            let (mut first, mut left) = (u64::from(run.first), u64::from(run.pages));
            while left > 0 {
                let mapping = self.mapping_of(first)?;
                let inside = (mapping.first_page + mapping.pages - first).min(left);
                let address = mapping.address + (first - mapping.first_page) * PAGE as u64;
                remote.push(libc::iovec {
                    iov_base: address as *mut libc::c_void,
                    iov_len: inside as usize * PAGE,
                });
                first += inside;
                left -= inside;
            }
        }
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: the one local part is `buffer`, which is ours alone and as long
        // as it says. The remote parts are addresses of another process, which
        // the kernel checks.
        let read = unsafe {
            libc::process_vm_readv(
                self.process.pid,
                &local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        match usize::try_from(read) {
            Ok(read) if read == buffer.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    fn mapping_of(&self, page: u64) -> io::Result<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.first_page <= page);
        let mapping = after.checked_sub(1).map(|at| &self.mappings[at]);
        mapping
            .filter(|mapping| page < mapping.first_page + mapping.pages)
            .ok_or_else(|| io::Error::other("a page of the machine is mapped nowhere"))
    }
}

/// The used parts of the file, from front to back.
struct Data<'a> {
    file: &'a OwnedFd,
    /// Pages that are known to be used; all before them were asked for.
    data: std::ops::Range<u64>,
    end: u64,
}

impl Data<'_> {
    /// Adds the used pages of `from..to`. Calls go from front to back.
    fn collect(&mut self, from: u64, to: u64, pieces: &mut Pieces) -> io::Result<()> {
        let mut page = from;
        while page < to {
            if page >= self.data.end {
                self.data = self.next(page)?;
            }
            page = page.max(self.data.start);
            let end = to.min(self.data.end);
            while page < end {
                pieces.add(page);
                page += 1;
            }
        }
        Ok(())
    }

    fn next(&self, page: u64) -> io::Result<std::ops::Range<u64>> {
        let size = PAGE as u64;
        let start = match rustix::fs::seek(self.file, SeekFrom::Data(page * size)) {
            Ok(start) => start / size,
            Err(rustix::io::Errno::NXIO) => return Ok(self.end..self.end),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(self.file, SeekFrom::Hole(start * size))?.div_ceil(size);
        Ok(start..end.min(self.end))
    }
}

/// Collects pages into pieces.
struct Pieces {
    source: Source,
    pieces: Vec<Piece>,
    /// Room in the last one.
    room: usize,
}

impl Pieces {
    fn new(source: Source) -> Self {
        Self { source, pieces: Vec::new(), room: 0 }
    }

    fn add(&mut self, page: u64) {
        // A machine has far fewer than 2^32 pages.
        let page = page as u32;
        if self.room == 0 {
            self.pieces.push(Piece { source: self.source, runs: Vec::new() });
            self.room = PIECE_PAGES;
        }
        self.room -= 1;
        if let Some(piece) = self.pieces.last_mut() {
            match piece.runs.last_mut() {
                Some(run) if run.first + run.pages == page => run.pages += 1,
                _ => piece.runs.push(Run { first: page, pages: 1 }),
            }
        }
    }
}

/// Where the file is mapped, in the file's order.
fn mappings(maps: &str, device: (u32, u32), inode: u64, pages: u64) -> io::Result<Vec<Mapping>> {
    let size = PAGE as u64;
    let of_file = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let _rights = fields.next()?;
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        let same = (hex(major)?, hex(minor)?) == device && fields.next()?.parse() == Ok(inode);
        let address = u64::from_str_radix(from, 16).ok()?;
        let end = u64::from_str_radix(to, 16).ok()?;
        let pages = end.checked_sub(address)? / size;
        same.then_some(Mapping { address, first_page: offset / size, pages })
    };
    let mut found: Vec<_> = maps.lines().filter_map(of_file).collect();
    found.sort_by_key(|mapping| mapping.first_page);
    let mut end = 0;
    for mapping in &found {
        if mapping.first_page < end {
            return Err(io::Error::other("the machine maps a part of its memory twice"));
        }
        end = mapping.first_page.saturating_add(mapping.pages);
    }
    if found.is_empty() || end > pages {
        return Err(io::Error::other("the machine does not map its memory as it should"));
    }
    Ok(found)
}

fn read_at(file: &OwnedFd, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        let read = rustix::io::pread(file, &mut *buffer, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[read..];
        offset += read as u64;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
