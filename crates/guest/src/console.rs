//! Lines on the console, and the end of the machine.
//!
//! The host keeps the console in a bounded ring and shows its last line when a
//! sandbox dies, so the line that says why is written before anything else
//! happens. Nothing a workload sends is ever written here.

use std::{
    io,
    panic::PanicHookInfo,
    sync::atomic::{AtomicU32, Ordering},
};

/// The process whose end is the end of the machine; 0 while there is none.
static INIT: AtomicU32 = AtomicU32::new(0);

/// Declares that this process is the machine's PID 1: its failure and its
/// panic restart the machine from now on.
pub(crate) fn own_the_machine() {
    INIT.store(std::process::id(), Ordering::Relaxed);
}

/// Writes one line to standard error, marked as ours.
pub(crate) fn say(line: &str) {
    write(rustix::stdio::stderr(), &format!("coldframe: {line}\n"));
}

/// Writes one line to standard output.
pub(crate) fn print(line: &str) {
    write(rustix::stdio::stdout(), &format!("{line}\n"));
}

/// Says why and ends this process; for PID 1, the machine.
pub(crate) fn fail(reason: &str) -> ! {
    say(reason);
    end()
}

/// Makes a panic follow the same way: one line, then the end.
pub(crate) fn catch_panics() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let text = info.payload_as_str().unwrap_or("no message");
        fail(&format!("panic at {place}: {text}"));
    }));
}

fn end() -> ! {
    // A forked child that has not yet become its program is not PID 1.
    if INIT.load(Ordering::Relaxed) == std::process::id() {
        // The line above is still in the terminal's buffer.
        rustix::termios::tcdrain(rustix::stdio::stderr()).ok();
        rustix::system::reboot(rustix::system::RebootCommand::Restart).ok();
    }
    // SAFETY: `_exit` takes a number and does not return.
    unsafe { libc::_exit(70) }
}

fn write(fd: rustix::fd::BorrowedFd<'_>, text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(fd, rest) {
            Ok(0) => return,
            Ok(n) => rest = &rest[n..],
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
            // There is nowhere left to say it.
            Err(_) => return,
        }
    }
}
