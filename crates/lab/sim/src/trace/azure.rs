//! Azure traces: times and lengths without content. Prompts share nothing.

use std::ops::RangeInclusive;

use warmroute_types::Micros;

use super::{Reading, limits, lines};
use crate::random::mix;
use crate::{Piece, Session};

/// Reads the requests.
pub fn read(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<Session> {
    let mut sessions: Vec<(usize, Session)> = Vec::new();
    for (number, line) in lines::numbered(bytes).skip(1) {
        reading.lines_total += 1;
        match parse(line) {
            Ok((at_us, prompt, answer)) => {
                sessions.push((number, session(number as u64, at_us, prompt, answer)));
            }
            Err(why) => reading.bad(number, why),
        }
    }
    let sessions = limits::rebased(sessions, |session| &mut session.starts.0, reading);
    reading.notes.push("content was not recorded: no prompt shares anything with another".to_owned());
    sessions.into_iter().map(|(_, session)| session).collect()
}

fn session(number: u64, at_us: u64, prompt_tokens: u32, output_tokens: u32) -> Session {
    let prompt = Piece { content: mix(2 * number), tokens: prompt_tokens.max(1) };
    let answer = Piece { content: mix(2 * number + 1), tokens: output_tokens.max(1) };
    Session::single(Micros(at_us), vec![prompt], vec![answer])
}

fn parse(line: &[u8]) -> Result<(u64, u32, u32), String> {
    let (at_us, prompt, answer) =
        cells(line).ok_or_else(|| "expected TIMESTAMP,ContextTokens,GeneratedTokens".to_owned())?;
    limits::check_tokens(prompt, answer)?;
    Ok((at_us, prompt, answer))
}

fn cells(line: &[u8]) -> Option<(u64, u32, u32)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut cells = line.split(',');
    let row = (microseconds(cells.next()?)?, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
    cells.next().is_none().then_some(row)
}

/// Parses `2023-11-16 18:17:03.9799600` as microseconds since year 0.
fn microseconds(stamp: &str) -> Option<u64> {
    let (date, time) = stamp.split_once(' ')?;
    let mut parts = time.split(':');
    let hours = number(parts.next()?, 0..=23)?;
    let minutes = number(parts.next()?, 0..=59)?;
    let seconds: f64 = parts.next()?.parse().ok().filter(|seconds| (0.0..61.0).contains(seconds))?;
    let whole_s = ((days(date)? * 24 + hours) * 60 + minutes) * 60;
    Some(whole_s * 1_000_000 + (seconds * 1e6).round() as u64)
}

/// Parses `2024-02-29` as days since year 0. Years start in March here, so that a leap day is the last of its
/// year; months then start after `(153 m + 2) / 5` days.
fn days(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let year = number(parts.next()?, 1..=9_999)?;
    let month = number(parts.next()?, 1..=12)?;
    let day = number(parts.next()?, 1..=31)?;
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    parts.next().is_none().then_some(year * 365 + leap_days + (153 * month + 2) / 5 + day)
}

fn number(digits: &str, range: RangeInclusive<u64>) -> Option<u64> {
    digits.parse().ok().filter(|number| range.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_parsed_to_the_microsecond() {
        let at = |stamp| microseconds(stamp).unwrap();
        assert_eq!(at("2023-11-16 18:17:04.0319600") - at("2023-11-16 18:17:03.9799600"), 52_000);
        assert_eq!(at("2023-11-17 00:00:00") - at("2023-11-16 23:59:59"), 1_000_000);
    }

    #[test]
    fn differences_are_right_across_months_and_years() {
        for (before, after) in [
            ("2023-11-30", "2023-12-01"),
            ("2023-12-31", "2024-01-01"),
            ("2024-02-28", "2024-02-29"),
            ("2024-02-29", "2024-03-01"),
            ("2023-02-28", "2023-03-01"),
            ("2100-02-28", "2100-03-01"),
        ] {
            let at = |date: &str, time: &str| microseconds(&format!("{date} {time}")).unwrap();
            assert_eq!(at(after, "00:00:00.5") - at(before, "23:59:59.5"), 1_000_000, "{before}");
        }
    }

    #[test]
    fn invalid_timestamps_are_refused() {
        for bad in [
            "soon",
            "2023-13-01 00:00:00",
            "2023-11-32 00:00:00",
            "2023-11-30 24:00:00",
            "2023-11-30 00:60:00",
            "2023-11-30 00:00:NaN",
            "18446744073709551615-01-01 00:00:00",
            "2023-11-30-01 00:00:00",
        ] {
            assert_eq!(microseconds(bad), None, "{bad}");
        }
    }
}
