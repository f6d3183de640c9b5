//! What a command line that cannot be parsed is answered with.
//!
//! It looks like every other failure: one line that begins with
//! `coldframe: error:`, then hints, and JSON where JSON was asked for. The
//! parser's own words stay; only their form is ours.

use std::{ffi::OsString, process::ExitCode};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::{
    error::{Codes, Failure, Kind},
    output::{self, Format},
};

/// Shows help, the version or the mistake, and returns the exit code.
pub(super) fn report(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        output::help(error);
        return ExitCode::SUCCESS;
    }
    let words = words(arguments);
    let json = words.iter().take_while(|word| **word != "--").any(|word| *word == "--json");
    let format = if json { Format::Json } else { Format::Text };
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::failure(&Failure::usage("a command is missing"), format);
        output::help(error);
    } else {
        output::failure(&failure(error, &words), format);
    }
    Kind::Usage.code(meant(&words)).into()
}

/// The parser's paragraphs: the first is the mistake, the others are advice.
fn failure(error: &clap::Error, words: &[&str]) -> Failure {
    let text = error.to_string().replace("\n  tip: ", "\n\n  tip: ");
    let mut paragraphs = text.split("\n\n").map(line).filter(|said| !said.is_empty());
    let message = paragraphs.next().unwrap_or_default();
    let mut failure = Failure::usage(message.trim_start_matches("error: "));
    if let Some(hint) = separator(error, words) {
        failure = failure.hint(hint);
    }
    for said in paragraphs {
        failure = failure.hint(said.trim_start_matches("tip: "));
    }
    failure
}

/// A program that was named without `--`, which keeps its flags apart from ours.
fn separator(error: &clap::Error, words: &[&str]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(program)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let command = match words {
        ["run", ..] => "run",
        ["sandbox", "exec", ..] => "sandbox exec SANDBOX",
        _ => return None,
    };
    let program = program.as_str();
    (!program.starts_with('-'))
        .then(|| format!("put `--` before the program: coldframe {command} -- {program} …"))
}

/// Whose exit codes a command line means that could not be parsed.
fn meant(words: &[&str]) -> Codes {
    match words {
        ["run", ..] | ["sandbox", "exec" | "shell", ..] => Codes::Program,
        _ => Codes::Own,
    }
}

/// What stands after the name of this program, without the flag that every
/// command has and that may stand before its name.
fn words(arguments: &[OsString]) -> Vec<&str> {
    let mut all = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let mut words = Vec::new();
    while let Some(word) = all.next() {
        match word {
            "--" => {
                words.push(word);
                words.extend(all.by_ref());
            }
            "--config" => drop(all.next()),
            word if word.starts_with("--config=") => {}
            word => words.push(word),
        }
    }
    words
}

fn line(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_a_command_that_runs_a_program_is_told_by_the_band() {
        assert_eq!(meant(&["run", "--nope"]), Codes::Program);
        assert_eq!(meant(&["sandbox", "exec"]), Codes::Program);
        assert_eq!(meant(&["sandbox", "list", "--nope"]), Codes::Own);
        assert_eq!(meant(&[]), Codes::Own);
    }

    #[test]
    fn a_flag_before_the_command_does_not_hide_it() {
        let read = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
            words(&arguments).join(" ")
        };
        assert_eq!(read("coldframe --config f run --nope"), "run --nope");
        assert_eq!(read("coldframe --config=f sandbox --config g exec"), "sandbox exec");
        assert_eq!(read("coldframe run -- --config f"), "run -- --config f");
        assert_eq!(read("coldframe --config"), "");
    }
}
