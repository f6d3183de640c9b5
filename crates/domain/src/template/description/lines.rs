//! From a file to instructions: comments, continuations, keywords.

/// One instruction and where it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: usize,
    /// In capitals.
    pub(super) keyword: String,
    /// What follows it, without space around.
    pub(super) rest: String,
}

/// The instructions of `text`, in order.
///
/// A line that ends in one backslash goes on in the next; comments and empty
/// lines within are skipped, as is usual in such files.
pub(super) fn lines(text: &str) -> Vec<Line> {
    let mut instructions = Vec::new();
    let mut joined: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let begins = line.trim_start();
        if begins.starts_with('#') || begins.is_empty() {
            continue;
        }
        let (content, goes_on) = continued(line);
        let (number, mut whole) = joined.take().unwrap_or((index + 1, String::new()));
        whole.push_str(content);
        if goes_on {
            joined = Some((number, whole));
        } else {
            instructions.push(instruction(number, &whole));
        }
    }
    // A continuation of the last line into nothing.
    instructions.extend(joined.map(|(number, whole)| instruction(number, &whole)));
    instructions
}

/// The line without the backslash that continues it, and whether it has one.
fn continued(line: &str) -> (&str, bool) {
    let trimmed = line.trim_end();
    match trimmed.strip_suffix('\\') {
        // Two backslashes are an escaped one.
        Some(before) if !before.ends_with('\\') => (before, true),
        _ => (line, false),
    }
}

fn instruction(number: usize, whole: &str) -> Line {
    let whole = whole.trim();
    let (keyword, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
    Line { number, keyword: keyword.to_ascii_uppercase(), rest: rest.trim().to_owned() }
}
