//! The frequency of the host's time stamp counter.
//!
//! A machine under translation reads the host's counter and has nothing to
//! measure it against, so its kernel is told the frequency. An error of one part
//! in a million costs a sandbox four milliseconds in an hour.

use std::{
    io,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// How long to measure. The error of one reading is about a microsecond.
const SPAN: Duration = Duration::from_millis(100);
/// How often the reading is repeated to catch one without an interruption.
const TRIES: usize = 16;

/// Measures it, in kHz.
pub(super) fn measure_khz() -> io::Result<u64> {
    let begin = read();
    std::thread::sleep(SPAN);
    let end = read();
    let ticks = u128::from(end.ticks.saturating_sub(begin.ticks));
    let nanos = u128::from(end.nanos.saturating_sub(begin.nanos));
    let khz = (ticks * 1_000_000).checked_div(nanos).and_then(|khz| u64::try_from(khz).ok());
    match khz {
        Some(khz) if khz > 100_000 => Ok(khz),
        _ => Err(io::Error::other("the host's time stamp counter does not count")),
    }
}

/// A tick count and the time at which it was read.
#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    nanos: u64,
}

/// The tightest of several readings, in the middle of its clock calls.
fn read() -> Reading {
    let once = || {
        let started = Instant::now();
        let before = raw_nanos();
        let ticks = ticks();
        let after = raw_nanos();
        (started.elapsed(), Reading { ticks, nanos: before + (after - before) / 2 })
    };
    let first = once();
    let rest = (1..TRIES).map(|_| once());
    rest.fold(first, |best, one| if one.0 < best.0 { one } else { best }).1
}

fn raw_nanos() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    // A monotonic clock is never negative.
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and Linux leaves it
    // to user programs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_measurements_agree() {
        let (one, two) = (super::measure_khz().unwrap(), super::measure_khz().unwrap());
        assert!(one.abs_diff(two) < one / 1000, "{one} and {two}");
    }
}
