//! Recorded traffic, read from files as they are published; `.zst` is read directly.
//!
//! Which format a file has is seen from its beginning. A line that cannot be read is counted and named with file and line, and
//! the rest goes on. What had to be made up, such as arrivals inside a clock tick or the length of a token, is said in notes.

mod azure;
mod blocks;
mod format;
mod limits;
mod lines;
mod quantum;
mod recorded;
mod text;
mod texts;

use std::path::{Path, PathBuf};

use thiserror::Error;
use warmroute_types::Micros;

pub use format::TraceFormat;

use crate::random::{Random, mix};
use crate::{Piece, Session};

/// How a trace is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// Of what had to be drawn by lot.
    pub seed: u64,
    /// Times the recorded rate.
    pub rate: f64,
    /// So many of it at once, with nothing in common and shifted against each other: a trace for a larger fleet.
    pub copies: u32,
    /// Sessions a second, for texts without times.
    pub sessions_per_s: f64,
    /// Mean time to read an answer and write the next question, for texts.
    pub think_s: f64,
    /// Where retrieved passages stand in a prompt, for texts that have any.
    pub passages: Passages,
    /// No more requests than this, about: sessions are not cut.
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
            passages: Passages::After,
            requests_max: None,
        }
    }
}

/// Where retrieved passages stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passages {
    /// Before the history, which is never found again then.
    Before,
    /// In the last question.
    #[default]
    After,
    /// Nowhere: the conversation alone.
    Left,
}

/// A trace as sessions.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What it was read as.
    pub format: TraceFormat,
    /// In the order of their start.
    pub sessions: Vec<Session>,
    /// What had to be made up, in words for a report.
    pub notes: Vec<String>,
    /// The first lines that could not be read.
    pub bad_lines: Vec<BadLine>,
    /// How many there were.
    pub bad_lines_total: u64,
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}:{line}: {why}", file.display())]
pub struct BadLine {
    /// Where.
    pub file: PathBuf,
    /// From 1 on.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

/// A file that is no trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{}: {why}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// It is in no format we know.
    #[error("{}: no known format; known: {}", file.display(), TraceFormat::KNOWN)]
    UnknownFormat {
        /// Which.
        file: PathBuf,
    },
    /// More of it is unreadable than a run may leave out.
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
    /// Nothing in it could be read.
    #[error("{}: no request in it can be read{}", file.display(), first_bad(.first))]
    Empty {
        /// Which.
        file: PathBuf,
        /// The first bad line.
        first: Option<BadLine>,
    },
}

fn first_bad(first: &Option<BadLine>) -> String {
    first.as_ref().map_or(String::new(), |bad| format!("; {bad}"))
}

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
    reading.notes.extend(quantum::smear(&mut sessions, options.seed));
    sessions.sort_by_key(|session| session.starts);
    let sessions = scaled(sessions, options);
    let Reading { notes, bad_lines, bad_lines_total, lines_total, .. } = reading;
    Ok((Trace { format, sessions, notes, bad_lines, bad_lines_total }, lines_total))
}

/// What is gathered beside the sessions.
struct Reading<'a> {
    file: &'a Path,
    notes: Vec<String>,
    bad_lines: Vec<BadLine>,
    bad_lines_total: u64,
    /// Lines that are not empty, or entries of a JSON array.
    lines_total: u64,
}

/// Bad lines that are kept in full.
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

/// Copies, faster, and no more than wanted.
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

/// Copies start up to this much later, so that they do not ask at the very same times.
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
