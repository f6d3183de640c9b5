//! The archive that puts the guest's init into the kernel's first file system.
//!
//! The kernel accepts concatenated archives, so this one is appended to the
//! image's modules and the image needs no knowledge of the guest program.

/// One archive in the kernel's "newc" format: `/dev` and `/init`.
pub(super) fn with_init(program: &[u8]) -> Vec<u8> {
    let mut archive = Vec::with_capacity(program.len() + 1024);
    append(&mut archive, 1, "dev", 0o040_755, &[]);
    append(&mut archive, 2, "init", 0o100_755, program);
    append(&mut archive, 0, "TRAILER!!!", 0, &[]);
    archive
}

fn append(archive: &mut Vec<u8>, inode: usize, name: &str, mode: usize, content: &[u8]) {
    archive.extend_from_slice(b"070701");
    let links = 1;
    let fields = [inode, mode, 0, 0, links, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
    for field in fields {
        archive.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::with_init;

    #[test]
    fn the_archive_holds_the_program_at_a_multiple_of_four() {
        let archive = with_init(b"program");
        assert!(archive.starts_with(b"070701"));
        let at = archive.windows(7).position(|window| window == b"program").unwrap();
        assert_eq!(at % 4, 0);
        assert_eq!(archive.len() % 4, 0);
        assert!(archive.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
