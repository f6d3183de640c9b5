//! Which test proves which requirement, read from the tests themselves.
//!
//! A test names the requirements it proves in the comment above it (`/// S5, S25`)
//! or at the beginning of its name (`s5_s25_the_root_is_read_only`). This reads
//! source text line by line rather than parsing it, because tests inside macros
//! (`proptest!`) look like functions to a person and like tokens to a parser.

use crate::requirements::Id;

/// A test function and the requirements it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) name: String,
    /// The line of its name, counted from one.
    pub(crate) line: usize,
    pub(crate) ids: Vec<Id>,
}

/// Finds the tests in the text of one source file.
pub(crate) fn tests(source: &str) -> Vec<Proof> {
    let mut found = Vec::new();
    let mut ids = Vec::new();
    let mut is_test = false;
    for (index, line) in source.lines().enumerate() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("//") {
            ids.extend(named_in(comment));
        } else if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
        } else if let Some(name) = function(line) {
            if is_test {
                ids.extend(named_by(name));
                ids.sort();
                ids.dedup();
                found.push(Proof { name: name.to_owned(), line: index + 1, ids });
            }
            (ids, is_test) = (Vec::new(), false);
        } else {
            // Anything else separates a comment from the function below it.
            (ids, is_test) = (Vec::new(), false);
        }
    }
    found
}

/// `#[test]`, `#[tokio::test]` and `#[tokio::test(…)]`.
fn is_test_attribute(line: &str) -> bool {
    let path = line.trim_start_matches("#[").split(['(', ']']).next().unwrap_or_default();
    path == "test" || path.ends_with("::test")
}

/// The name in `pub async fn name(…`, if the line begins a function.
fn function(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    words
        .by_ref()
        .find(|word| !matches!(*word, "pub" | "pub(crate)" | "async"))
        .filter(|word| *word == "fn")?;
    words.next()?.split(['(', '<']).next()
}

fn named_in(comment: &str) -> impl Iterator<Item = Id> {
    comment.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(Id::parse)
}

fn named_by(name: &str) -> impl Iterator<Item = Id> {
    name.split('_').map_while(|word| Id::parse(&word.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let found: Vec<_> = tests(source)
            .iter()
            .map(|test| {
                let ids: Vec<_> = test.ids.iter().map(Id::to_string).collect();
                format!("{} {}", test.name, ids.join(","))
            })
            .collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn a_comment_above_a_test_names_what_it_proves() {
        check("/// S5, S25: kept.\n#[test]\nfn root() {", &["root S5,S25"]);
        check(
            "#[tokio::test(flavor = \"multi_thread\")]\n/// K15\nasync fn ends() {",
            &["ends K15"],
        );
        check("    // U28 and again U28\n    #[test]\n    fn once(x in 0..3u8) {", &["once U28"]);
    }

    #[test]
    fn a_name_names_what_it_begins_with() {
        check("#[test]\nfn s5_l19_only_lo() {", &["s5_l19_only_lo L19,S5"]);
        check("#[test]\nfn reads_u16() {", &["reads_u16 "]);
    }

    #[test]
    fn only_tests_count_and_only_what_stands_directly_above() {
        check("/// S5\nfn helper() {\n}\n#[test]\nfn bare() {", &["bare "]);
        check("// S5\n\n#[test]\nfn apart() {", &["apart "]);
        check("/// S5\n#[cfg(test)]\nfn not_a_test() {", &[]);
    }
}
