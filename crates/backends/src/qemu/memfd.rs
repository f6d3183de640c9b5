//! Files without a name, in memory, for what a machine maps or reads.
//!
//! A sealed one can be given to any number of machines: the kernel refuses every
//! write to it, whoever asks, so a machine that was taken over cannot reach a
//! later one through what they share. Machines reopen them through `/proc`, as
//! users of their own, hence the modes.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

/// Makes a sealed file from its content.
pub(super) fn sealed(name: &str, parts: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut file = File::from(create(name)?);
    for part in parts {
        file.write_all(part)?;
    }
    let descriptor = OwnedFd::from(file);
    rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(0o444))?;
    seal(descriptor.as_fd())?;
    Ok(descriptor)
}

/// Makes an empty file of `bytes` bytes for a machine's memory.
///
/// The machine opens it for writing even to map it privately, so its mode lets
/// it; what stops a write is the seal.
pub(super) fn memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let descriptor = create(name)?;
    rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(0o666))?;
    rustix::fs::ftruncate(&descriptor, bytes)?;
    Ok(descriptor)
}

/// Forbids every change from now on. Fails while anyone maps it for writing.
pub(super) fn seal(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(descriptor, seals)?)
}

/// Opens the file again for reading, with a position of its own.
pub(super) fn reopen(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens the file again for writing only.
pub(super) fn reopen_for_writing(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether nobody can change the file.
pub(super) fn is_sealed(descriptor: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(SealFlags::WRITE))
}

/// Writes all of `bytes` at `offset`.
pub(super) fn write_at(
    descriptor: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut offset: u64,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(descriptor, bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// The file's size.
pub(super) fn length(descriptor: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(descriptor)?.st_size).unwrap_or(0))
}

/// Memory that the file takes now.
pub(super) fn used_bytes(descriptor: BorrowedFd<'_>) -> io::Result<u64> {
    let status = rustix::fs::fstat(descriptor)?;
    Ok(u64::try_from(status.st_blocks).unwrap_or(0) * 512)
}

fn create(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create(name, flags)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// S4: what clones share cannot be written, not even through the descriptor
    /// that a machine holds.
    #[test]
    fn a_sealed_file_refuses_every_writer() {
        let memory = memory("test", 8192).unwrap();
        rustix::io::pwrite(&memory, b"template", 0).unwrap();
        seal(memory.as_fd()).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(rustix::io::pwrite(&again, b"x", 0), Err(rustix::io::Errno::PERM));
        assert!(rustix::fs::ftruncate(&again, 0).is_err());
        assert!(rustix::fs::ftruncate(&again, 16384).is_err());
        assert!(rustix::fs::fcntl_add_seals(&again, SealFlags::empty()).is_err());
        // SAFETY: the mapping must fail; no memory of ours is involved.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                8192,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &again,
                0,
            )
        };
        assert!(mapped.is_err());
    }

    #[test]
    fn each_opening_reads_from_the_start() {
        let file = sealed("test", &[b"ab", b"cd"]).unwrap();
        for _ in 0..2 {
            let mut text = String::new();
            File::from(reopen(file.as_fd()).unwrap()).read_to_string(&mut text).unwrap();
            assert_eq!(text, "abcd");
        }
    }
}
