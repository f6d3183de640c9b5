//! A test that names a requirement names one that exists.

use super::Problem;
use crate::{
    proof,
    requirements::{self, Requirements},
    tree::{SourceFile, Tree},
};

pub(super) fn check(tree: &Tree) -> anyhow::Result<Vec<Problem>> {
    let requirements = requirements::read(&tree.root)?;
    Ok(tree.rust().flat_map(|file| unknown(file, &requirements)).collect())
}

fn unknown(file: &SourceFile, requirements: &Requirements) -> Vec<Problem> {
    let mut problems = Vec::new();
    for test in proof::tests(&file.text) {
        for id in test.ids.iter().filter(|id| !requirements.contains_key(id)) {
            let what =
                format!("{} names {id}, which {} does not have", test.name, requirements::FILE);
            problems.push(Problem::line(&file.path, test.line, what));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_requirement_is_reported() {
        let requirements = requirements::parse("- S1: One.\n").expect("valid");
        let file = SourceFile::new("a.rs", "/// S1, S2\n#[test]\nfn both() {\n");
        let found = unknown(&file, &requirements);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, Some(3));
    }
}
