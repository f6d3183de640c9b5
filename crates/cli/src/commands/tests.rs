//! The command line as a whole: it is sound, and its reference is up to date.

use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_sound() {
    Arguments::command().debug_assert();
}

/// The page as the commands have it.
fn reference() -> String {
    let mut page = "# Commands\n\n\
        Generated from the commands in `crates/cli/src/commands`; do not edit.\n\
        Exit codes are in [the guide](../guide/cli.md).\n"
        .to_owned();
    let mut root = Arguments::command().term_width(100);
    root.build();
    describe(&mut root, "", &mut page);
    page
}

fn describe(command: &mut clap::Command, parents: &str, page: &mut String) {
    let path = format!("{parents}{}", command.get_name());
    let help = command.render_long_help().to_string();
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    page.push_str(&format!("\n## `{path}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    for child in command.get_subcommands_mut() {
        if !child.is_hide_set() && child.get_name() != "help" {
            describe(child, &format!("{path} "), page);
        }
    }
}

#[test]
fn the_reference_page_is_up_to_date() {
    crate::golden::check("docs/reference/cli.md", &reference());
}
