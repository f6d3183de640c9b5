//! A kernel for machines that never boot one.
//!
//! A clone continues from device state, but QEMU wants a kernel before it loads
//! that, and keeps what it reads for the machine's whole life. A file that has
//! the real kernel's header and nothing behind it satisfies QEMU: 11 MiB less
//! memory and 20 ms less start for each clone.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

/// Where a bzImage says how many sectors its real-mode part has.
const SETUP_SECTORS: usize = 0x1f1;
/// Where it says that it is one.
const MAGIC: std::ops::Range<usize> = 0x202..0x206;
const SECTOR: usize = 512;

/// Makes the stub of the kernel at `path`.
pub(super) fn of(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut head = vec![0; 64 * SECTOR];
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    head.truncate(length);
    file.read_exact_at(&mut head, 0)?;
    stub(&head).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "the image's kernel is not a bzImage")
    })
}

/// QEMU insists on at least as much protected-mode code as there is real-mode
/// code.
fn stub(head: &[u8]) -> Option<Vec<u8>> {
    if head.get(MAGIC)? != b"HdrS" {
        return None;
    }
    let setup = (usize::from(head[SETUP_SECTORS]) + 1) * SECTOR;
    let mut stub = head.get(..setup)?.to_vec();
    stub.resize(2 * setup + 4096, 0);
    Some(stub)
}

#[cfg(test)]
mod tests {
    use super::stub;

    #[test]
    fn only_a_kernel_has_a_stub() {
        let mut head = vec![0; 64 * 512];
        assert_eq!(stub(&head), None);
        assert_eq!(stub(b"short"), None);
        head[0x202..0x206].copy_from_slice(b"HdrS");
        head[0x1f1] = 4;
        assert_eq!(stub(&head).unwrap().len(), 2 * 5 * 512 + 4096);
        head[0x1f1] = 255;
        assert_eq!(stub(&head), None);
    }
}
