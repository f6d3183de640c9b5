//! What the program says about itself.

use crate::program::{coldframe, run};

#[test]
fn help_and_version_are_results() {
    let state = tempfile::tempdir().expect("folder");
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"], &["help", "sandbox"]] {
        let left = run(&mut coldframe(state.path(), arguments));
        assert_eq!((left.code, left.stderr.as_str()), (Some(0), ""), "{left:?}");
        assert!(!left.stdout.is_empty());
    }
}

#[test]
fn no_word_of_help_ends_in_the_middle_of_a_pipe() {
    let state = tempfile::tempdir().expect("folder");
    let left = run(&mut coldframe(state.path(), &["run", "--help"]));
    assert!(!left.stdout.contains('\x1b'), "no colour in a pipe");
}
