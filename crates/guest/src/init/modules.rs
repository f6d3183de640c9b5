//! Loading kernel modules from the initial file system.
//!
//! The image lists them in an order that needs no dependency resolution. They
//! are deleted afterwards: that file system is memory.

use std::{fs::File, io, path::Path};

/// Lists one absolute path a line.
const ORDER: &str = "/modules.order.coldframe";

/// Loads every listed module and deletes the files.
pub(super) fn load() -> io::Result<()> {
    let list = match std::fs::read_to_string(ORDER) {
        Ok(list) => list,
        // A kernel with everything built in.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for path in list.lines().filter(|line| !line.is_empty()) {
        let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
        let file = File::open(path).map_err(with_path)?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(with_path(error.into())),
        }
        std::fs::remove_file(path).map_err(with_path)?;
    }
    std::fs::remove_file(ORDER)?;
    // Empty by now; a file nobody listed may stay.
    std::fs::remove_dir(Path::new("/modules")).ok();
    Ok(())
}
