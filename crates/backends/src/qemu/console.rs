//! The last output of a machine's console.
//!
//! QEMU keeps it in a ring that reading empties, so what was read is kept here,
//! and in a file of the sandbox's folder for the next server. Every byte was
//! written by the guest: it is bounded, and what becomes part of a sentence is
//! stripped of everything that a terminal would obey.

use std::path::Path;

use super::command::CONSOLE_BYTES;

/// The longest line that becomes part of a reason.
const MAX_LINE_CHARS: usize = 200;

/// The tail of a console.
#[derive(Debug, Default)]
pub(super) struct Console {
    bytes: Vec<u8>,
}

impl Console {
    /// Reads what an earlier server saved.
    pub(super) fn load(file: &Path) -> Self {
        let mut console = Self::default();
        console.push(&std::fs::read(file).unwrap_or_default());
        console
    }

    /// Adds output.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let excess = self.bytes.len().saturating_sub(CONSOLE_BYTES as usize);
        self.bytes.drain(..excess);
    }

    /// The output.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The line that says most about an end: the kernel's panic, else the last
    /// one with anything to read on it.
    pub(super) fn last_words(&self) -> Option<String> {
        let panic = b"Kernel panic - ";
        let at = self.bytes.windows(panic.len()).rposition(|window| window == panic);
        let line = at.and_then(|at| self.bytes[at..].split(|byte| *byte == b'\n').next());
        last_line(line.unwrap_or(&self.bytes))
    }
}

/// The last line of a text from a machine with anything to read on it.
pub(super) fn last_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().rev().map(|line| {
        let shown = line.chars().filter(|c| !c.is_control()).take(MAX_LINE_CHARS);
        shown.collect::<String>().trim().to_owned()
    });
    // What the kernel says when the guest's init has given up comes after init
    // has said why, and says nothing.
    lines.into_iter().find(|line| !line.is_empty() && !line.ends_with("reboot: Restarting system"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S14: a guest that writes for ever fills its own ring.
    #[test]
    fn only_the_tail_is_kept() {
        let mut console = Console::default();
        for _ in 0..100 {
            console.push(&[b'x'; 4096]);
        }
        console.push(b"end");
        assert_eq!(console.bytes().len(), CONSOLE_BYTES as usize);
        assert!(console.bytes().ends_with(b"end"));
    }

    #[test]
    fn a_line_for_people_obeys_no_terminal_codes() {
        let mut console = Console::default();
        console.push(b"boot\r\nKernel panic \x1b[31mnow\x07\r\n\r\n \n");
        assert_eq!(console.last_words().as_deref(), Some("Kernel panic [31mnow"));
        assert_eq!(Console::default().last_words(), None);
        console.push(b"[1.0] Kernel panic - not syncing: out of memory\r\nKernel Offset: 0\r\n");
        let words = console.last_words();
        assert_eq!(words.as_deref(), Some("Kernel panic - not syncing: out of memory"));
    }

    /// K16: the cause is what init said, not what the kernel did about it.
    #[test]
    fn the_reason_of_init_is_shown_and_not_its_restart() {
        let mut console = Console::default();
        console
            .push(b"coldframe: cannot mount the image\r\n[    2.7] reboot: Restarting system\r\n");
        assert_eq!(console.last_words().as_deref(), Some("coldframe: cannot mount the image"));
    }
}
