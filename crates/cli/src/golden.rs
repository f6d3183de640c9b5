//! Files that are generated from code and kept in the tree, so that a surface
//! never changes by accident.
//!
//! `COLDFRAME_UPDATE_GOLDEN=1 cargo test -p cli` writes them anew.

use std::path::Path;

/// Compares a file of the repository with what it should hold.
#[track_caller]
pub(crate) fn check(path: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("COLDFRAME_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("folder");
        std::fs::write(&path, expected).expect("written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} is out of date; run: COLDFRAME_UPDATE_GOLDEN=1 cargo test -p cli",
        path.display()
    );
}
