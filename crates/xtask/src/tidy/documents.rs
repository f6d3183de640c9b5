//! A link in a document of the repository leads to something that is there.
//!
//! Only links within the repository are checked: what others publish is not ours
//! to keep.

use super::Problem;
use crate::tree::{SourceFile, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    documents.flat_map(|file| dead(file, |path| tree.root.join(path).exists())).collect()
}

fn dead(file: &SourceFile, exists: impl Fn(&str) -> bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut is_code = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for link in links(line) {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || link.contains(':') {
                continue;
            }
            if !resolve(&file.path, path).is_some_and(|path| exists(&path)) {
                let what = format!("links to {link}, which does not exist");
                problems.push(Problem::line(&file.path, index + 1, what));
            }
        }
    }
    problems
}

/// The targets of `[text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The path of `link` in the document at `from`, seen from the root; none if it
/// leads out of the repository.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: usize) {
        let file = SourceFile::new("docs/guide/a.md", line);
        assert_eq!(dead(&file, |path| path == "docs/b.md").len(), expected, "{line}");
    }

    #[test]
    fn a_link_within_the_repository_leads_somewhere() {
        check("see [b](../b.md) and [part](../b.md#part)", 0);
        check("see [c](../c.md)", 1);
        check("see [out](../../../b.md)", 1);
    }

    #[test]
    fn other_links_and_code_are_left_alone() {
        check("see [site](https://example.com/x) and [here](#here)", 0);
        check("```\n[c](../c.md)\n```", 0);
    }
}
