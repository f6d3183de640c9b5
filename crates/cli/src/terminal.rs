//! The terminal we were started from: raw mode, size, and putting it back.

use std::io::{self, IsTerminal as _};

use guest_protocol::process::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The size when there is no terminal to ask.
const FALLBACK: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// A terminal that passes every key on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    /// Puts standard input into raw mode; nothing to do when it is no terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Some(Self { before }))
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
