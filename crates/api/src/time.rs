//! Points in time on the wire: RFC 3339 in UTC, with milliseconds.

use std::fmt;

use domain::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use utoipa::ToSchema;

/// A [`Timestamp`] that is written as `2026-11-29T16:00:00.000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-11-29T16:00:00.000Z")]
pub struct Time(pub Timestamp);

const DAY_MS: i64 = 86_400_000;

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0.0.div_euclid(DAY_MS), self.0.0.rem_euclid(DAY_MS));
        let (year, month, day) = date_of(days);
        let (hour, minute) = (ms / 3_600_000, ms / 60_000 % 60);
        let (second, milli) = (ms / 1000 % 60, ms % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).map(Self).ok_or_else(|| D::Error::custom("not a time as the server writes it"))
    }
}

/// Reads what [`Time`] writes; fractions of a second may be missing.
fn parse(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':');
    let hour = time.next()?.parse::<i64>().ok()?;
    let minute = time.next()?.parse::<i64>().ok()?;
    let (second, fraction) = time.next().map(|rest| rest.split_once('.').unwrap_or((rest, "")))?;
    let second = second.parse::<i64>().ok()?;
    // Right-padded to milliseconds: ".5" is 500.
    let milli = format!("{:0<3.3}", fraction).parse::<i64>().ok()?;
    let in_range = (0..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    let seconds = (hour * 60 + minute) * 60 + second;
    in_range.then(|| Timestamp(days_of(year, month, day) * DAY_MS + seconds * 1000 + milli))
}

/// The civil date of a day number since 1970, in the proleptic Gregorian
/// calendar. Years are counted from March, so that the leap day is the last.
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`date_of`].
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    era * 146_097 + of_era - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_instants_read_as_people_write_them() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_968_000_123, "2026-11-29T16:00:00.123Z"),
        ] {
            assert_eq!(Time(Timestamp(ms)).to_string(), text);
            assert_eq!(parse(text), Some(Timestamp(ms)));
        }
        assert_eq!(parse("1970-01-01T00:00:01Z"), Some(Timestamp(1000)));
        assert_eq!(parse("1970-01-01T00:00:01.5Z"), Some(Timestamp(1500)));
        for text in ["", "Z", "1970-13-01T00:00:00Z", "1970-01-01", "x-01-01T00:00:00Z"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_time_reads_back_as_itself(ms in 0i64..4_102_444_800_000) {
            prop_assert_eq!(parse(&Time(Timestamp(ms)).to_string()), Some(Timestamp(ms)));
        }

        #[test]
        fn no_text_panics_the_parser(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }
    }
}
