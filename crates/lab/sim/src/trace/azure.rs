//! Azure's traces: times and lengths, nothing about content. Every prompt is its own.

use warmroute_types::Micros;

use super::{Reading, lines};
use crate::random::mix;
use crate::{Piece, Session};

/// The requests.
pub fn read(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for (number, line) in lines::numbered(bytes).skip(1) {
        match parse(line) {
            Some((at_us, prompt, answer)) => sessions.push(session(number as u64, at_us, prompt, answer)),
            None => reading.bad(number, "expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        }
    }
    let first = sessions.iter().map(|session| session.starts).min().unwrap_or_default();
    sessions.iter_mut().for_each(|session| session.starts = session.starts.since(first));
    reading.notes.push("content was not recorded: no prompt shares anything with another".to_owned());
    sessions
}

fn session(number: u64, at_us: u64, prompt_tokens: u32, output_tokens: u32) -> Session {
    let prompt = Piece { content: mix(2 * number), tokens: prompt_tokens.max(1) };
    let answer = Piece { content: mix(2 * number + 1), tokens: output_tokens.max(1) };
    Session::single(Micros(at_us), vec![prompt], vec![answer])
}

fn parse(line: &[u8]) -> Option<(u64, u32, u32)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut cells = line.split(',');
    let row = (microseconds(cells.next()?)?, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
    cells.next().is_none().then_some(row)
}

/// `2023-11-16 18:17:03.9799600`, as microseconds since the beginning of its month: traces are an hour to a week long, and
/// begin where their first request does.
fn microseconds(stamp: &str) -> Option<u64> {
    let (date, time) = stamp.split_once(' ')?;
    let day: u64 = date.rsplit('-').next()?.parse().ok()?;
    let mut parts = time.split(':');
    let (hours, minutes): (u64, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let seconds: f64 = parts.next()?.parse().ok().filter(|seconds| (0.0..61.0).contains(seconds))?;
    let whole_s = ((day * 24 + hours) * 60 + minutes) * 60;
    Some(whole_s * 1_000_000 + (seconds * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_to_the_microsecond() {
        let at = |stamp| microseconds(stamp).unwrap();
        assert_eq!(at("2023-11-16 18:17:04.0319600") - at("2023-11-16 18:17:03.9799600"), 52_000);
        assert_eq!(at("2023-11-17 00:00:00") - at("2023-11-16 23:59:59"), 1_000_000);
        assert_eq!(microseconds("soon"), None);
    }
}
