//! Durations as people write them: `30s`, `5m`, `1h`, `1h30m`, `250ms`, `1.5s`.
//!
//! A bare number is seconds, as `timeout` and `sleep` read it.

use std::time::Duration;

/// The longest that can be asked for.
const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads a duration that is not zero.
pub(crate) fn parse(raw: &str) -> Result<Duration, String> {
    let invalid = || format!("{raw:?} is not a duration; write it like 30s, 5m, 1h30m or 250ms");
    let mut rest = raw;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let number: f64 = number.parse().map_err(|_| invalid())?;
        total += number
            * match unit {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                // Only as the whole text: `1h30` could mean either.
                "" if rest.len() == raw.len() => 1.0,
                _ => return Err(invalid()),
            };
        rest = after;
    }
    let duration = Duration::try_from_secs_f64(total).map_err(|_| invalid())?;
    if duration.is_zero() {
        return Err("a duration must be more than zero".to_owned());
    }
    if duration > MAX {
        return Err(format!("{raw:?} is longer than a year"));
    }
    Ok(duration)
}

/// How long something took or has left, for people.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_they_are_written() {
        for (raw, ms) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("1.5s", 1500),
            ("250ms", 250),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(raw), Ok(Duration::from_millis(ms)), "{raw:?}");
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for raw in ["", "0", "0s", "s", "-1s", "1h30", "1 s", "1x", "1..5s", "inf", "nan", "9999d"]
        {
            assert!(parse(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn what_is_shown_is_short() {
        assert_eq!(show(Duration::from_millis(12)), "12ms");
        assert_eq!(show(Duration::from_millis(1200)), "1.2s");
        assert_eq!(show(Duration::from_secs(61)), "1m01s");
        assert_eq!(show(Duration::from_secs(3660)), "1h01m");
    }
}
