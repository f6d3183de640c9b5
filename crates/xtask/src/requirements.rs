//! The requirements, as `docs/requirements.md` states them.
//!
//! A requirement is a list item `- S5: text` or a row of a table whose first
//! cell is an id; `(+)` after the id marks an addition to the base list. Ids are
//! permanent: never renumbered, never reused, and without gaps in a series.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use anyhow::{Context, bail};

/// Where the requirements are written, seen from the root of the checkout.
pub(crate) const FILE: &str = "docs/requirements.md";

/// The series in the order in which the document has them.
pub(crate) const SERIES: [(char, &str); 6] = [
    ('W', "Profile `workspace`"),
    ('L', "Profile `local`"),
    ('S', "Profile `ephemeral`"),
    ('U', "How the three fit together"),
    ('B', "Better than is usual"),
    ('K', "Known failures to avoid"),
];

/// The name of one requirement, such as `S25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) series: char,
    pub(crate) number: u16,
}

impl Id {
    /// Reads an id that is written exactly as the document writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut chars = text.chars();
        let series = chars.next()?;
        let digits = chars.as_str();
        let is_number = (1..=3).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.starts_with('0');
        let known = SERIES.iter().any(|(known, _)| *known == series);
        (known && is_number).then_some(())?;
        Some(Self { series, number: digits.parse().ok()? })
    }

    fn order(self) -> (usize, u16) {
        let series = SERIES.iter().position(|(series, _)| *series == self.series);
        (series.unwrap_or(SERIES.len()), self.number)
    }
}

impl Ord for Id {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Id {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.series, self.number)
    }
}

/// Every requirement with its text, in the order of [`SERIES`].
pub(crate) type Requirements = BTreeMap<Id, String>;

/// Reads the requirements of the checkout at `root`.
pub(crate) fn read(root: &Path) -> anyhow::Result<Requirements> {
    let text = fs::read_to_string(root.join(FILE)).with_context(|| format!("reading {FILE}"))?;
    parse(&text).with_context(|| format!("in {FILE}"))
}

/// Finds the requirements in the text of the document.
pub(crate) fn parse(text: &str) -> anyhow::Result<Requirements> {
    let mut found = Requirements::new();
    for line in text.lines() {
        let Some((id, text)) = item(line).or_else(|| row(line)) else { continue };
        if found.insert(id, text).is_some() {
            bail!("{id} is stated twice");
        }
    }
    for (series, _) in SERIES {
        let numbers = found.keys().filter(|id| id.series == series).map(|id| id.number);
        if let Some((gap, _)) = (1..).zip(numbers).find(|(expected, number)| expected != number) {
            bail!("{series}{gap} is missing, and ids are never removed");
        }
    }
    Ok(found)
}

/// `- S5: text` or `- S63 (+): text`.
fn item(line: &str) -> Option<(Id, String)> {
    let (id, text) = line.strip_prefix("- ")?.split_once(": ")?;
    Some((marked(id)?, text.to_owned()))
}

/// `| S71 (+) | cell | cell |`.
fn row(line: &str) -> Option<(Id, String)> {
    let mut cells = line.strip_prefix('|')?.trim_end().strip_suffix('|')?.split('|').map(str::trim);
    let id = marked(cells.next()?)?;
    Some((id, cells.collect::<Vec<_>>().join(" · ")))
}

fn marked(id: &str) -> Option<Id> {
    Id::parse(id.strip_suffix(" (+)").unwrap_or(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_rows_are_requirements() {
        let text =
            "- S1: One.\n- S2 (+): Two: more.\n- S22 is text\n| S3 (+) | Three | 3 |\n| ID | x |\n";
        let found = parse(text).expect("valid");
        let found: Vec<_> = found.iter().map(|(id, text)| format!("{id} {text}")).collect();
        assert_eq!(found, ["S1 One.", "S2 Two: more.", "S3 Three · 3"]);
    }

    #[test]
    fn an_id_is_neither_repeated_nor_left_out() {
        assert!(parse("- S1: One.\n- S1: Again.\n").is_err());
        assert!(parse("- S1: One.\n- S3: Three.\n").is_err());
    }

    #[test]
    fn only_the_written_form_is_an_id() {
        for text in ["S0", "s5", "S05", "S", "X1", "S1234", "S5a", "S+5"] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_document_of_this_repository_can_be_read() {
        let found = read(&crate::workspace::root()).expect("valid");
        assert!(found.len() > 500, "{}", found.len());
    }
}
