//! A time as text, in UTC: for log lines (RFC 3339) and for names of files.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time, split into the fields of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UtcTime {
    year: u64,
    month: u64,
    day: u64,
    second_of_day: u64,
    micros: u32,
}

impl UtcTime {
    /// Times before 1970 count as 1970: only a clock that was never set shows them.
    pub fn of(time: SystemTime) -> UtcTime {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (year, month, day) = civil_date(since.as_secs() / 86_400);
        UtcTime { year, month, day, second_of_day: since.as_secs() % 86_400, micros: since.subsec_micros() }
    }

    fn clock(&self) -> (u64, u64, u64) {
        (self.second_of_day / 3_600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }

    /// The time for a file's name: names sort as their times do.
    pub fn file_suffix(&self) -> String {
        let (hour, minute, second) = self.clock();
        let UtcTime { year, month, day, micros, .. } = self;
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{micros:06}Z")
    }

    /// Whether a text has the form of [`UtcTime::file_suffix`].
    pub fn is_file_suffix(text: &str) -> bool {
        const FORM: &str = "00000000T000000.000000Z";
        let fits = |(form, byte): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { form == byte };
        text.len() == FORM.len() && FORM.bytes().zip(text.bytes()).all(fits)
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = self.clock();
        let UtcTime { year, month, day, micros, .. } = self;
        let millis = micros / 1_000;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// Year, month and day of a number of days since 1970-01-01. Years begin in March here, so that the leap day is the
/// last day of its year; 400 years are 146,097 days.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let since_year_zero = days + 719_468;
    let (era, day_of_era) = (since_year_zero / 146_097, since_year_zero % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn utc(secs: u64, micros: u64) -> UtcTime {
        UtcTime::of(UNIX_EPOCH + Duration::from_secs(secs) + Duration::from_micros(micros))
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        // Checked with `date -u -d @SECONDS`.
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(secs, 0).to_string(), text);
        }
        assert_eq!(utc(1, 999_999).to_string(), "1970-01-01T00:00:01.999Z");
        assert_eq!(UtcTime::of(UNIX_EPOCH - Duration::from_secs(9)), utc(0, 0));
    }

    #[test]
    fn file_suffixes_are_recognized_and_sort_by_time() {
        let (earlier, later) = (utc(951_868_799, 7).file_suffix(), utc(951_868_800, 1).file_suffix());
        assert_eq!(earlier, "20000229T235959.000007Z");
        assert!(earlier < later && UtcTime::is_file_suffix(&earlier));
        for other in
            ["", "1", "20000229T235959.000007", "20000229T235959.00000xZ", "20000229T235959.000007Zz"]
        {
            assert!(!UtcTime::is_file_suffix(other), "{other}");
        }
    }
}
