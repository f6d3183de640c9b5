//! How far a long step has come, on standard error and only on a terminal.

use std::{io::IsTerminal as _, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// A step that takes an unknown time.
pub(crate) fn waiting(what: &str) -> ProgressBar {
    let bar = shown(ProgressBar::new_spinner());
    bar.set_style(style("{spinner} {msg} ({elapsed})"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Bytes under way: of how many, if that is known.
pub(crate) fn bytes(what: &str, total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => {
            let bar = shown(ProgressBar::new(total));
            bar.set_style(style(
                "{msg} {bytes}/{total_bytes} {wide_bar} {bytes_per_sec}, {eta} left",
            ));
            bar
        }
        None => {
            let bar = shown(ProgressBar::no_length());
            bar.set_style(style("{spinner} {msg} {bytes} {bytes_per_sec}"));
            bar
        }
    };
    bar.set_message(what.to_owned());
    bar
}

fn shown(bar: ProgressBar) -> ProgressBar {
    if std::io::stderr().is_terminal() {
        return bar;
    }
    bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    bar
}

fn style(template: &str) -> ProgressStyle {
    // A template that does not parse shows the plain bar instead.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
