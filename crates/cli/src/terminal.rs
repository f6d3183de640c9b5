//! The terminal we were started from: raw mode, size, and putting it back.

use std::io::{self, IsTerminal as _};

use guest_protocol::process::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::error::{Failure, Outcome};

/// The size when there is no terminal to ask.
const FALLBACK: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// Whether a program can be given a terminal: somebody must type on it.
///
/// Without that it would wait for ever for what a pipe does not say: a pipe has
/// an end, a keyboard has none.
pub(crate) fn required() -> Outcome<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage("-t needs a terminal on standard input; use -i without -t"))
}

/// A terminal that passes every key on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    /// Puts standard input, a terminal, into raw mode.
    pub(crate) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no putting back.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.before).ok();
    }
}

/// The size of the terminal.
pub(crate) fn size() -> TerminalSize {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    match size {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            TerminalSize { cols: size.ws_col.into(), rows: size.ws_row.into() }
        }
        Ok(_) | Err(_) => FALLBACK,
    }
}
