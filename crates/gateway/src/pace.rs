//! How often something may happen: so many at once, and so many a second.

use std::time::Instant;

/// A bucket of permissions that fills up again.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    burst: f64,
    per_second: f64,
    left: f64,
    last: Instant,
}

impl Pace {
    /// Allows `burst` at once and `per_second` in the long run.
    pub fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        let burst = f64::from(burst);
        Self { burst, per_second: per_second.into(), left: burst, last: now }
    }

    /// Takes one permission, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.burst);
        self.last = now;
        let there = self.left >= 1.0;
        if there {
            self.left -= 1.0;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_empties_and_fills() {
        let start = Instant::now();
        let mut pace = Pace::new(3, 2, start);
        assert_eq!([0; 4].map(|_| pace.take(start)), [true, true, true, false]);
        let later = start + Duration::from_secs(1);
        assert_eq!([0; 3].map(|_| pace.take(later)), [true, true, false]);
        let much_later = start + Duration::from_secs(3600);
        assert_eq!((0..9).filter(|_| pace.take(much_later)).count(), 3);
        // A clock that goes back gives nothing.
        assert!(!pace.take(start));
    }
}
