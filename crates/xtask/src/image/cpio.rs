//! The "newc" archive that Linux unpacks as its first root file system.
//!
//! Everything in it belongs to root, carries one time stamp and is numbered in
//! the order it was added, so the same content is always the same bytes.
//! Archives may be concatenated: the guest's init is appended to this one.

/// The kernel reads concatenated archives at multiples of four; tools that read
/// them from a disk expect a multiple of the block size.
const BLOCK: usize = 512;

/// An archive under construction.
#[derive(Debug)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
    time: u32,
}

impl Cpio {
    /// An empty archive whose entries carry `time`.
    pub(crate) const fn new(time: u32) -> Self {
        Self { bytes: Vec::new(), entries: 0, time }
    }

    /// Adds a directory.
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    /// Adds a file that everyone may read.
    pub(crate) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, 0o100_644, content);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.time = 0;
        self.entry("TRAILER!!!", 0, &[]);
        self.pad(BLOCK);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("a module is far smaller than 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        let (inode, links, time) = (self.entries, 1, self.time);
        // inode, mode, uid, gid, links, time, size, two device numbers of the
        // file and two of a device node, name length, and a checksum unused here.
        let header = [inode, mode, 0, 0, links, time, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in header {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend_from_slice(content);
        self.pad(4);
    }

    fn pad(&mut self, multiple: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(multiple), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_layout_that_linux_reads() {
        let mut archive = Cpio::new(7);
        archive.file("a", b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[6 + 8 * 5..6 + 8 * 7], b"0000000700000005");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..117], b"hello");
        assert_eq!(bytes.len() % BLOCK, 0);
    }
}
