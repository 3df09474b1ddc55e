//! `strftime_now`, with which some templates write today's date into the system prompt.
//!
//! The caller supplies the time, which is read as UTC, the usual zone of servers. With an engine in another
//! zone prompts differ for some hours of the day, and feedback shows it.

use std::fmt::Write;

use crate::calendar::{DAYS, MONTHS};

/// A time in calendar fields.
struct Moment {
    year: i64,
    month: usize,
    day: u64,
    day_of_year: u64,
    /// Sunday is 0.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

/// Formats a time as Python's `strftime` does; `None` for an unknown directive.
pub(crate) fn strftime(format: &str, unix_s: u64) -> Option<String> {
    let moment = Moment::of(unix_s);
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next()? {
            '-' => {
                let padded = moment.written(letters.next()?)?;
                let number = padded.trim_start_matches('0');
                out.push_str(if number.is_empty() { "0" } else { number });
            }
            directive => out.push_str(&moment.written(directive)?),
        }
    }
    Some(out)
}

impl Moment {
    /// Converts days to a date, with 400-year cycles that start in March.
    fn of(unix_s: u64) -> Moment {
        let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let month = (month_from_march + 2) % 12;
        let year = (era * 400 + year_of_era + u64::from(month < 2)) as i64;
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year =
            if month < 2 { day_from_march - 305 } else { day_from_march + 60 + u64::from(is_leap) };
        Moment {
            year,
            month: month as usize,
            day: day_from_march - (153 * month_from_march + 2) / 5 + 1,
            day_of_year,
            weekday: ((days + 4) % 7) as usize,
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn written(&self, directive: char) -> Option<String> {
        let mut out = String::new();
        let hour_of_twelve = (self.hour + 11) % 12 + 1;
        match directive {
            'Y' => write!(out, "{}", self.year),
            'y' => write!(out, "{:02}", self.year % 100),
            'm' => write!(out, "{:02}", self.month + 1),
            'd' => write!(out, "{:02}", self.day),
            'e' => write!(out, "{:2}", self.day),
            'j' => write!(out, "{:03}", self.day_of_year),
            'B' => write!(out, "{}", MONTHS[self.month]),
            'b' | 'h' => write!(out, "{}", &MONTHS[self.month][..3]),
            'A' => write!(out, "{}", DAYS[self.weekday]),
            'a' => write!(out, "{}", &DAYS[self.weekday][..3]),
            'w' => write!(out, "{}", self.weekday),
            'H' => write!(out, "{:02}", self.hour),
            'I' => write!(out, "{hour_of_twelve:02}"),
            'M' => write!(out, "{:02}", self.minute),
            'S' => write!(out, "{:02}", self.second),
            'p' => write!(out, "{}", if self.hour < 12 { "AM" } else { "PM" }),
            'F' => write!(out, "{}-{:02}-{:02}", self.year, self.month + 1, self.day),
            'T' => write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'D' => write!(out, "{:02}/{:02}/{:02}", self.month + 1, self.day, self.year % 100),
            '%' => write!(out, "%"),
            _ => return None,
        }
        .ok()?;
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "Thursday 01 January 1970 001 00:00:00 AM"),
            (951_782_399, "Monday 28 February 2000 059 23:59:59 PM"),
            (951_782_400, "Tuesday 29 February 2000 060 00:00:00 AM"),
            (951_868_800, "Wednesday 01 March 2000 061 00:00:00 AM"),
            (1_709_251_200, "Friday 01 March 2024 061 00:00:00 AM"),
            (1_740_787_200, "Saturday 01 March 2025 060 00:00:00 AM"),
            (1_767_225_599, "Wednesday 31 December 2025 365 23:59:59 PM"),
            (4_102_444_800, "Friday 01 January 2100 001 00:00:00 AM"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %j %T %p", unix_s).unwrap(), text);
        }
    }

    #[test]
    fn directives_are_those_of_python() {
        let text = strftime("%d %b %Y|%-d %-m|%e|%a|%y|%I:%M %p|%F|%D|%w|%%", 1_751_896_920).unwrap();
        assert_eq!(text, "07 Jul 2025|7 7| 7|Mon|25|02:02 PM|2025-07-07|07/07/25|1|%");
        assert_eq!(strftime("%Q", 0), None);
    }
}
