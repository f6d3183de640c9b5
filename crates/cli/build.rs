//! Embeds the guest's program, where its path is given in `COLDFRAME_GUESTD`.
//!
//! Without one an empty file is embedded, and the program looks for `guestd`
//! beside itself when it runs: `cargo check` must not need a guest.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-env-changed=COLDFRAME_GUESTD");
    let Some(out) = env::var_os("OUT_DIR") else {
        return Err(io::Error::other("OUT_DIR is not set; build with cargo"));
    };
    let embedded = Path::new(&out).join("guestd");
    match env::var_os("COLDFRAME_GUESTD").filter(|path| !path.is_empty()) {
        Some(path) => {
            println!("cargo:rerun-if-changed={}", Path::new(&path).display());
            let missing = |error| {
                let path = Path::new(&path).display();
                io::Error::other(format!("COLDFRAME_GUESTD={path} cannot be read: {error}"))
            };
            fs::write(embedded, fs::read(&path).map_err(missing)?)
        }
        None => fs::write(embedded, b""),
    }
}
