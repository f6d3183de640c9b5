//! What a sandbox may try to write into a record.

use proptest::prelude::*;

use super::*;

/// L-01: no line break, no cursor, no second reading.
#[test]
fn a_text_is_one_printable_line() {
    for (raw, expected) in [
        ("good.test:443", "good.test:443"),
        ("a\nb", "a\\nb"),
        ("a\u{1b}[2K", "a\\u{1b}[2K"),
        ("a\\nb", "a\\\\nb"),
        ("é\u{202e}", "\\u{e9}\\u{202e}"),
    ] {
        assert_eq!(Text::from(raw).as_str(), expected);
    }
    assert_eq!(Text::from("é".repeat(400).as_str()).as_str().len(), 300 + 3);
}

proptest! {
    #[test]
    fn a_text_is_short_printable_and_reads_back(raw in "(\\PC|[\\x00-\\x1f\\\\]){0,400}") {
        let text = Text::from(raw.as_str());
        prop_assert!(text.as_str().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        prop_assert!(text.as_str().len() <= MAX_TEXT + 3);
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
    }
}
