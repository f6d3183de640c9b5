//! What a path of a request means.
//!
//! `~` and `~/x` are below the account's home, a relative path likewise, an
//! absolute one is itself. The result is absolute and has no `.` or `..`; links
//! are not looked at. Nothing is checked: the worker has only its account's
//! rights, and the kernel applies them.

use std::path::{Component, Path, PathBuf};

/// Resolves a path of a request.
pub(crate) fn resolve(raw: &str, home: &Path) -> PathBuf {
    let full = match raw.strip_prefix('~') {
        Some("") => home.to_path_buf(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => home.join(raw),
    };
    let mut clean = PathBuf::from("/");
    for component in full.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(raw: &str, expected: &str) {
        assert_eq!(resolve(raw, Path::new("/home/user")), Path::new(expected), "{raw:?}");
    }

    #[test]
    fn a_path_begins_at_the_home_unless_it_is_absolute() {
        check("a/b", "/home/user/a/b");
        check("", "/home/user");
        check("~", "/home/user");
        check("~/a", "/home/user/a");
        check("~//a", "/home/user/a");
        check("~other", "/home/user/~other");
        check("/etc/hosts", "/etc/hosts");
    }

    #[test]
    fn a_path_has_one_spelling() {
        check("/a//b/./c/", "/a/b/c");
        check("/a/../../b", "/b");
        check("../x", "/home/x");
        check("a\nb", "/home/user/a\nb");
    }

    proptest! {
        #[test]
        fn every_path_becomes_absolute_and_clean(raw in ".{0,60}") {
            let path = resolve(&raw, Path::new("/home/user"));
            prop_assert!(path.is_absolute());
            prop_assert!(path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_))));
            prop_assert_eq!(resolve(&path.to_string_lossy(), Path::new("/")), path);
        }
    }
}
