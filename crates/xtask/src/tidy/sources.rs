//! What every Rust file must be like: short, introduced, finished.

use super::{Problem, rules::Rules};
use crate::tree::{SourceFile, Tree};

/// Lines above which a file needs a reason in the root `Cargo.toml`.
const LONG: usize = 600;

/// Lines that no reason excuses.
const TOO_LONG: usize = 1000;

/// What must not be written, and why. The words are put together here, so that
/// this file does not contain them.
const UNFINISHED: [(&str, &str); 6] = [
    (concat!("#[", "ignore"), "a test that does not run proves nothing; mend it or remove it"),
    (concat!("#[", "should_panic"), "check the error that a caller sees"),
    (concat!("to", "do!("), "finish it or leave it out"),
    (concat!("unimpl", "emented!("), "finish it or leave it out"),
    (concat!("TO", "DO"), "finish it, or write down what is absent and why"),
    (concat!("FIX", "ME"), "finish it, or write down what is absent and why"),
];

/// Names that say nothing about what a file decides.
const EMPTY_NAMES: [&str; 7] = ["common", "helper", "helpers", "misc", "mod", "util", "utils"];

pub(super) fn check(tree: &Tree, rules: &Rules) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.rust() {
        problems.extend(length(file, rules));
        problems.extend(introduction(file));
        problems.extend(unfinished(file));
        problems.extend(examples(file));
        problems.extend(name(file));
    }
    for path in rules.long_files.keys() {
        if !tree.has(path) {
            let what = format!("long-files names {path}, which does not exist");
            problems.push(Problem::file("Cargo.toml", what));
        }
    }
    for file in tree.files.iter().filter(|file| !file.is_text) {
        problems.push(Problem::file(&file.path, "is no text; the tree holds only sources"));
    }
    problems
}

fn length(file: &SourceFile, rules: &Rules) -> Option<Problem> {
    let lines = file.text.lines().count();
    let excused = rules.long_files.get(&file.path).is_some_and(|reason| !reason.is_empty());
    let limit = if excused { TOO_LONG } else { LONG };
    (lines > limit).then(|| {
        Problem::file(&file.path, format!("has {lines} lines and may have {limit}; split it"))
    })
}

fn introduction(file: &SourceFile) -> Option<Problem> {
    let first = file.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let is_introduced =
        first.starts_with("//!") || (file.is_test() && first.trim_start().starts_with("//"));
    (!is_introduced).then(|| {
        Problem::file(&file.path, "begins without a module doc (`//!`) that says what it decides")
    })
}

fn unfinished(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for (word, why) in UNFINISHED {
            if line.contains(word) {
                let what = format!("{} is not written here: {why}", word.trim_end_matches('('));
                problems.push(Problem::line(&file.path, index + 1, what));
            }
        }
    }
    problems
}

/// Code in a doc comment would be compiled as a program of its own, for minutes
/// in all. Where it is worth running, it is worth a test.
fn examples(file: &SourceFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut is_open = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        let Some(language) = comment.and_then(|comment| comment.trim().strip_prefix("```")) else {
            continue;
        };
        is_open = !is_open;
        if is_open && (language.is_empty() || language.starts_with("rust")) {
            let what = "has an example that nothing runs; write a test, or say `text`";
            problems.push(Problem::line(&file.path, index + 1, what));
        }
    }
    problems
}

fn name(file: &SourceFile) -> Option<Problem> {
    EMPTY_NAMES
        .contains(&file.stem())
        .then(|| Problem::file(&file.path, "is named for nothing; find the noun it holds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        toml::from_str(
            "layers = {}\nsole-users = {}\nlong-files = { \"a/long.rs\" = \"a table that is read as one\" }",
        )
        .expect("valid")
    }

    #[test]
    fn a_long_file_needs_a_reason_and_has_a_limit() {
        let lines = |path, count| length(&SourceFile::new(path, &"x\n".repeat(count)), &rules());
        assert_eq!(lines("a/b.rs", LONG), None);
        assert!(lines("a/b.rs", LONG + 1).is_some());
        assert_eq!(lines("a/long.rs", TOO_LONG), None);
        assert!(lines("a/long.rs", TOO_LONG + 1).is_some());
    }

    #[test]
    fn a_file_begins_with_what_it_decides() {
        let first = |path, text| introduction(&SourceFile::new(path, text));
        assert_eq!(first("a/b.rs", "\n//! Decides.\n"), None);
        assert!(first("a/b.rs", "// Decides.\n").is_some());
        assert_eq!(first("a/tests/it/b.rs", "// Decides.\n"), None);
        assert!(first("a/b/tests.rs", "use a;\n").is_some());
    }

    #[test]
    fn nothing_is_left_for_later() {
        for (word, _) in UNFINISHED {
            let file = SourceFile::new("a/b.rs", &format!("//! A.\n    {word}\n"));
            assert_eq!(unfinished(&file).len(), 1, "{word}");
        }
        assert_eq!(unfinished(&SourceFile::new("a/b.rs", "let ignored = 1;\n")), []);
    }

    #[test]
    fn an_example_is_a_test_or_it_is_text() {
        let found = |text| examples(&SourceFile::new("a/b.rs", text)).len();
        assert_eq!(found("//! ```text\n//! a ──► b\n//! ```\n"), 0);
        assert_eq!(found("    /// ```\n    /// f();\n    /// ```\n"), 1);
    }

    #[test]
    fn a_file_is_named_for_a_noun() {
        assert!(name(&SourceFile::new("a/utils.rs", "")).is_some());
        assert!(name(&SourceFile::new("a/b/mod.rs", "")).is_some());
        assert_eq!(name(&SourceFile::new("a/volumes.rs", "")), None);
    }
}
