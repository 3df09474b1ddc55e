//! Recorded traffic, read from published files; `.zst` is read directly.
//!
//! The format is detected from the file's beginning. An unreadable line is counted and reported with file and
//! line; more than 1 % of them is an error. Notes name everything that had to be assumed, such as arrivals
//! within a clock tick or the length of a token.

mod azure;
mod blocks;
mod format;
mod limits;
mod lines;
mod lm_benchmark;
mod loogle;
mod quantum;
mod recorded;
mod text;
mod texts;

use std::path::{Path, PathBuf};

use thiserror::Error;
use warmroute_types::{Micros, OptionValue};

pub use format::TraceFormat;

use crate::random::{Random, mix};
use crate::{Piece, Session};

/// Options for reading a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// Seed of the random choices.
    pub seed: u64,
    /// Multiple of the recorded rate.
    pub rate: f64,
    /// Copies of the trace that run at once, with different content and shifted starts: a trace for a larger
    /// fleet.
    pub copies: u32,
    /// Sessions per second, for texts without times.
    pub sessions_per_s: f64,
    /// Mean think time between turns, for texts.
    pub think_s: f64,
    /// Position of retrieved passages in a prompt, for texts that have any.
    pub passages: PassagePlacement,
    /// Approximate maximum of requests; sessions are not split.
    pub requests_max: Option<u64>,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions {
            seed: 1,
            rate: 1.0,
            copies: 1,
            sessions_per_s: 4.0,
            think_s: 10.0,
            passages: PassagePlacement::After,
            requests_max: None,
        }
    }
}

/// Position of retrieved passages in a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassagePlacement {
    /// Before the history, which then never hits a cache.
    Before,
    /// In the last question.
    #[default]
    After,
    /// Left out: the conversation alone.
    Omitted,
}

impl OptionValue for PassagePlacement {
    const VALUES: &'static [(PassagePlacement, &'static str, &'static str)] = &[
        (PassagePlacement::Before, "before", "Before the conversation"),
        (PassagePlacement::After, "after", "In the last question"),
        (PassagePlacement::Omitted, "none", "Left out"),
    ];
}

/// A trace as sessions.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Detected format.
    pub format: TraceFormat,
    /// Sessions sorted by start.
    pub sessions: Vec<Session>,
    /// Assumptions, in words for a report.
    pub notes: Vec<String>,
    /// The first unreadable lines.
    pub bad_lines: Vec<BadLine>,
    /// Number of unreadable lines.
    pub bad_lines_total: u64,
}

/// An unreadable line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}:{line}: {why}", file.display())]
pub struct BadLine {
    /// File that contains it.
    pub file: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// Reason.
    pub why: String,
}

/// Error of reading a trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {why}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Reason.
        why: String,
    },
    /// The format is unknown.
    #[error("{}: no known format; known: {}", file.display(), TraceFormat::KNOWN)]
    UnknownFormat {
        /// The file.
        file: PathBuf,
    },
    /// Too many lines are unreadable.
    #[error(
        "{}: {bad} of {total} lines cannot be read, more than {UNREADABLE_PERCENT_MAX} %; the first: {first}. \
         Repair or remove these lines",
        file.display()
    )]
    TooManyBadLines {
        /// The trace.
        file: PathBuf,
        /// Lines that cannot be read.
        bad: u64,
        /// All lines, or entries of a JSON array.
        total: u64,
        /// The first unreadable line, with the reason.
        first: BadLine,
    },
    /// The copies would not fit in memory.
    #[error(
        "{}: {copies} copies of {requests} requests are more than {REQUESTS_MAX} requests, which may not fit in memory: \
         lower --copies",
        file.display()
    )]
    TooManyCopies {
        /// The trace.
        file: PathBuf,
        /// Copies.
        copies: u32,
        /// Requests of one.
        requests: u64,
    },
    /// No line is readable.
    #[error("{}: no request in it can be read{}", file.display(), first_bad(.first))]
    Empty {
        /// The file.
        file: PathBuf,
        /// The first unreadable line.
        first: Option<BadLine>,
    },
}

fn first_bad(first: &Option<BadLine>) -> String {
    first.as_ref().map_or(String::new(), |bad| format!("; {bad}"))
}

/// Most requests of all copies of a trace. With long sessions they take about ten gigabytes.
const REQUESTS_MAX: u64 = 10_000_000;

/// The share of unreadable lines above which a trace is refused, in percent. A run on the rest would measure other traffic.
const UNREADABLE_PERCENT_MAX: u64 = 1;

/// Reads a trace. Fails if more than 1 % of its lines cannot be read.
pub fn read_trace(file: &Path, options: &TraceOptions) -> Result<Trace, TraceError> {
    let (trace, total) = read_readable_lines(file, options)?;
    let bad = trace.bad_lines_total;
    match trace.bad_lines.first() {
        Some(first) if bad * 100 > total * UNREADABLE_PERCENT_MAX => {
            Err(TraceError::TooManyBadLines { file: file.to_owned(), bad, total, first: first.clone() })
        }
        _ => Ok(trace),
    }
}

/// Reads a trace, however many lines are unreadable, and counts all lines.
fn read_readable_lines(file: &Path, options: &TraceOptions) -> Result<(Trace, u64), TraceError> {
    let bytes = lines::read(file)?;
    let format =
        TraceFormat::of(&bytes).ok_or_else(|| TraceError::UnknownFormat { file: file.to_owned() })?;
    let mut reading = Reading::new(file);
    let mut sessions = match format {
        TraceFormat::Mooncake | TraceFormat::Bailian => blocks::read(&bytes, format, &mut reading),
        TraceFormat::Azure => azure::read(&bytes, &mut reading),
        TraceFormat::Warmroute => recorded::read(&bytes, &mut reading),
        _ => texts::read(&bytes, format, options, &mut reading),
    };
    if sessions.is_empty() {
        return Err(TraceError::Empty { file: file.to_owned(), first: reading.bad_lines.into_iter().next() });
    }
    let (copies, requests) =
        (options.copies, sessions.iter().map(|session| session.turns.len() as u64).sum());
    if copies > 1 && requests * u64::from(copies) > REQUESTS_MAX {
        return Err(TraceError::TooManyCopies { file: file.to_owned(), copies, requests });
    }
    reading.notes.extend(quantum::smear(&mut sessions, options.seed));
    sessions.sort_by_key(|session| session.starts);
    let sessions = scaled(sessions, options);
    let Reading { notes, bad_lines, bad_lines_total, lines_total, .. } = reading;
    Ok((Trace { format, sessions, notes, bad_lines, bad_lines_total }, lines_total))
}

/// Notes and counts collected while reading.
struct Reading<'a> {
    file: &'a Path,
    notes: Vec<String>,
    bad_lines: Vec<BadLine>,
    bad_lines_total: u64,
    /// Lines that are not empty, or entries of a JSON array.
    lines_total: u64,
}

/// Unreadable lines that are reported in full.
const BAD_LINES_KEPT: usize = 20;

impl<'a> Reading<'a> {
    fn new(file: &'a Path) -> Reading<'a> {
        Reading { file, notes: Vec::new(), bad_lines: Vec::new(), bad_lines_total: 0, lines_total: 0 }
    }

    fn bad(&mut self, line: usize, why: impl ToString) {
        self.bad_lines_total += 1;
        if self.bad_lines.len() < BAD_LINES_KEPT {
            self.bad_lines.push(BadLine { file: self.file.to_owned(), line, why: why.to_string() });
        }
    }
}

/// Applies copies, rate and maximum of requests.
fn scaled(sessions: Vec<Session>, options: &TraceOptions) -> Vec<Session> {
    let mut all = Vec::with_capacity(sessions.len() * options.copies.max(1) as usize);
    let mut random = Random::new(options.seed, 801);
    for copy in 1..options.copies.max(1) {
        let shift = Micros(random.between(0, COPY_SHIFT_MAX.0));
        all.extend(sessions.iter().map(|session| copied(session, copy, shift)));
    }
    all.extend(sessions);
    for session in &mut all {
        session.starts = Micros((session.starts.0 as f64 / options.rate).round() as u64);
    }
    all.sort_by_key(|session| session.starts);
    let mut sent = 0;
    let is_wanted = |session: &Session| {
        let is_wanted = options.requests_max.is_none_or(|most| sent < most);
        sent += session.turns.len() as u64;
        is_wanted
    };
    all.into_iter().take_while(is_wanted).collect()
}

/// Maximum shift of a copy's start, so that copies do not send requests at the same times.
const COPY_SHIFT_MAX: Micros = Micros::from_secs(60);

fn copied(session: &Session, copy: u32, shift: Micros) -> Session {
    let salt = mix(u64::from(copy));
    let other = |pieces: &mut Vec<Piece>| {
        pieces.iter_mut().for_each(|piece| piece.content = mix(piece.content ^ salt))
    };
    let mut session = session.clone();
    session.starts = session.starts + shift;
    for turn in &mut session.turns {
        other(&mut turn.prompt);
        other(&mut turn.answer);
        turn.thread.key = turn.thread.key.map(|key| mix(key ^ salt));
    }
    session
}

#[cfg(test)]
mod tests;
