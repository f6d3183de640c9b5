//! What is written to the terminal. The only place that prints.
//!
//! Standard output carries what was asked for: a table for people, the same in
//! tab-separated lines when piped, or JSON. Standard error carries everything
//! else, so that a pipe never holds a notice. Colour is for terminals, and
//! never where `NO_COLOR` is set.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this module is where output goes, so that no other needs to print"
)]

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::error::Failure;

/// How results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people, or plain when piped.
    Text,
    /// For programs.
    Json,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Does not work.
    Fail,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Warn => "33",
            Self::Fail => "31",
        }
    }
}

/// Rows under headings.
///
/// Piped, the headings are left out: what reads lines wants rows.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        let mut text = String::new();
        for row in rows {
            let cells: Vec<_> = row.iter().map(|cell| cell.replace(['\t', '\n'], " ")).collect();
            text.push_str(&cells.join("\t"));
            text.push('\n');
        }
        return bytes(text.as_bytes());
    }
    let mut table = Table::new();
    // An id that is broken over two lines cannot be copied; a terminal breaks
    // lines itself.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    line(&table.to_string())
}

/// One JSON value on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(io::Error::from)?;
    line(&text)
}

/// One line.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Bytes as they are. A reader that has seen enough is not an error.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A checked thing, one line: the verdict, what was checked, what was found.
pub(crate) fn verdict(verdict: Verdict, subject: &str, found: &str) -> Result<(), Failure> {
    let word = paint(verdict.colour(), verdict.word(), io::stdout().is_terminal());
    let pad = " ".repeat(4 - verdict.word().len());
    let found = if found.is_empty() { String::new() } else { format!(": {found}") };
    line(&format!("{word}{pad}  {subject}{found}"))
}

/// An indented line below a verdict.
pub(crate) fn advice(text: &str) -> Result<(), Failure> {
    line(&format!("      {text}"))
}

/// A notice for people, on standard error.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// A failure, on standard error, and as JSON on standard output where the
/// command was asked for JSON.
pub(crate) fn failure(failure: &Failure, format: Format) {
    let stderr = io::stderr().is_terminal();
    let name = paint("31", "error", stderr);
    eprintln!("coldframe: {name}: {}", calm(&failure.message));
    for hint in &failure.hints {
        eprintln!("{}: {}", paint("36", "hint", stderr), calm(hint));
    }
    if format == Format::Json {
        let error = serde_json::json!({
            "error": {
                "code": failure.kind.word(),
                "detail": failure.message,
                "hints": failure.hints,
            }
        });
        // The exit code says it too; a closed pipe changes nothing.
        drop(json(&error));
    }
}

/// Prints help or the version as the command-line parser wants them shown.
pub(crate) fn help(asked: &clap::Error) {
    // Nobody is left to tell that this could not be written.
    drop(asked.print());
}

/// The text without control characters other than line ends and tabs: files,
/// servers and arguments must not move a cursor.
pub(crate) fn calm(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect()
}

fn paint(colour: &str, text: &str, terminal: bool) -> String {
    let plain = !terminal || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain { text.to_owned() } else { format!("\x1b[{colour}m{text}\x1b[0m") }
}
