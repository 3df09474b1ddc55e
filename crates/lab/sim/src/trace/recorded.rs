//! Traces of `warmroute serve --record`: hashes of prompt spans, with their lengths in bytes.
//!
//! A hash identifies a span and everything before it, so each is a piece of its own. Tokens per span are not
//! recorded: a prompt's tokens are spread over the bytes of the spans that no earlier prompt had.
//!
//! A prompt that starts with a whole earlier prompt is its next turn. It is sent as long after the answer as
//! it was recorded, not at its recorded time: a client whose answer frees a worker finds that worker free,
//! which a replay by the clock would lose. The text after the earlier prompt is taken as its answer, which is
//! not recorded.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use warmroute_types::Micros;

use super::{Reading, limits, lines};
use crate::random::mix;
use crate::{Piece, Session, Thread, Turn, tokens};

/// One request.
#[derive(Deserialize)]
struct Row {
    at_us: u64,
    took_us: u64,
    prompt_tokens: u32,
    output_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    model: serde_json::Value,
    session: Option<u64>,
    /// Hash and length in bytes of each span.
    spans: Vec<(u64, u32)>,
}

/// First line of a file.
#[derive(Deserialize)]
struct Header {
    warmroute_trace: u32,
}

/// Supported version of the format.
const VERSION: u32 = 1;

/// Reads the conversations.
pub fn read(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<Session> {
    let mut rows = limits::rebased(rows(bytes, reading), |row| &mut row.at_us, reading);
    rows.sort_by_key(|(_, row)| row.at_us);
    note_what_is_missing(&rows, reading);
    let usual = usual_output_tokens(&rows);
    let mut conversations = Conversations::default();
    for (number, row) in &rows {
        if let Err(why) = conversations.add(row, row.output_tokens.unwrap_or(usual).max(1)) {
            reading.bad(*number, why);
        }
    }
    conversations.sessions
}

fn rows(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<(usize, Row)> {
    let mut rows = Vec::new();
    for (number, line) in lines::numbered(bytes) {
        reading.lines_total += 1;
        match serde_json::from_slice::<Header>(line) {
            Ok(Header { warmroute_trace: VERSION }) => continue,
            Ok(header) => reading.bad(number, format!("version {} is not known", header.warmroute_trace)),
            Err(_) => match row(line) {
                Ok(row) => rows.push((number, row)),
                Err(why) => reading.bad(number, why),
            },
        }
    }
    rows
}

fn row(line: &[u8]) -> Result<Row, String> {
    let row: Row = serde_json::from_slice(line).map_err(|why| why.to_string())?;
    if row.prompt_tokens == 0 || row.spans.is_empty() {
        return Err("no prompt".to_owned());
    }
    if row.took_us > limits::SPAN_MAX.0 {
        return Err("it took months".to_owned());
    }
    limits::check_tokens(row.prompt_tokens, row.output_tokens.unwrap_or(0)).map(|()| row)
}

fn note_what_is_missing(rows: &[(usize, Row)], reading: &mut Reading<'_>) {
    let notes = &mut reading.notes;
    let usual = usual_output_tokens(rows);
    let rows = || rows.iter().map(|(_, row)| row);
    notes.push("answers were not recorded; the text that the next turn contains instead is used".to_owned());
    let silent = rows().filter(|row| row.output_tokens.is_none()).count();
    if silent > 0 {
        notes.push(format!(
            "{silent} requests have no answer length; the mean of the others, {usual} tokens, is used"
        ));
    }
    let models: HashSet<String> = rows().map(|row| row.model.to_string()).collect();
    if models.len() > 1 {
        notes.push(format!(
            "requests for {} models were recorded: here every engine serves them all",
            models.len()
        ));
    }
    // Engines omit a zero: if some report a number, a missing one means zero.
    let said = rows().any(|row| row.cached_tokens.is_some());
    let cached: u64 = rows().filter_map(|row| row.cached_tokens).map(u64::from).sum();
    let asked: u64 = rows().map(|row| u64::from(row.prompt_tokens)).sum();
    if said && asked > 0 {
        notes.push(format!(
            "when it was recorded, engines found {:.1} % of the prompt tokens in their caches",
            100.0 * cached as f64 / asked as f64
        ));
    }
}

/// Mean length of the answers whose length is known.
fn usual_output_tokens(rows: &[(usize, Row)]) -> u32 {
    let known: Vec<u64> = rows.iter().filter_map(|(_, row)| row.output_tokens).map(u64::from).collect();
    known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(1) as u32
}

/// Sessions so far, and what later requests need to know of earlier ones.
#[derive(Default)]
struct Conversations {
    sessions: Vec<Session>,
    requests: u64,
    /// Tokens per span hash.
    weights: HashMap<u64, u32>,
    /// Newest request with exactly this prompt, by the hash of its last span.
    ends: HashMap<u64, RequestRef>,
    /// Session and turn of the requests whose answer is known.
    answered: HashSet<(usize, usize)>,
    /// Tokens of the first prompt, by session key.
    first_tokens: HashMap<u64, u32>,
}

/// Position of a request that was read, and its end.
#[derive(Clone, Copy)]
struct RequestRef {
    session: usize,
    turn: usize,
    ended_us: u64,
}

impl Conversations {
    fn add(&mut self, row: &Row, output_tokens: u32) -> Result<(), String> {
        self.weigh(row);
        let prompt = row.spans.iter().map(|(hash, _)| self.piece(*hash)).collect::<Vec<Piece>>();
        // The spans may have more tokens than this request reports, because earlier prompts set their
        // weights.
        let own_tokens = tokens(&prompt);
        limits::check_tokens(own_tokens, output_tokens)?;
        let parent = self.parent(row);
        // A request sent before the answer's end cannot repeat the answer.
        let waited = parent.filter(|(asked, _)| asked.ended_us <= row.at_us);
        if let Some((asked, spans)) = waited {
            self.answer(asked, &prompt[spans..]);
        }
        let first_tokens = match (row.session, parent) {
            (Some(name), _) => *self.first_tokens.entry(name).or_insert(own_tokens),
            (None, Some((asked, _))) => self.turn(asked).thread.first_tokens,
            (None, None) => own_tokens,
        };
        let thread = Thread { key: row.session.map(mix), first_tokens, ..Thread::default() };
        let answer = vec![Piece { content: mix(self.requests ^ ANSWER), tokens: output_tokens }];
        self.requests += 1;
        self.append(
            row,
            waited.map(|(asked, _)| asked),
            Turn { think: Micros::ZERO, thread, prompt, answer },
        );
        Ok(())
    }

    /// Appends a turn to the session it continues, if it follows the session's last turn. Branches and new
    /// prompts become sessions of their own.
    fn append(&mut self, row: &Row, before: Option<RequestRef>, turn: Turn) {
        let is_last = |asked: &RequestRef| asked.turn + 1 == self.sessions[asked.session].turns.len();
        let (session, turns) = match before.filter(is_last) {
            Some(asked) => {
                let turns = &mut self.sessions[asked.session].turns;
                turns.push(Turn { think: Micros(row.at_us - asked.ended_us), ..turn });
                (asked.session, turns.len())
            }
            None => {
                self.sessions.push(Session { starts: Micros(row.at_us), turns: vec![turn] });
                (self.sessions.len() - 1, 1)
            }
        };
        let asked = RequestRef { session, turn: turns - 1, ended_us: row.at_us + row.took_us };
        row.spans.last().into_iter().for_each(|(hash, _)| _ = self.ends.insert(*hash, asked));
    }

    fn turn(&mut self, asked: RequestRef) -> &mut Turn {
        &mut self.sessions[asked.session].turns[asked.turn]
    }

    fn piece(&self, hash: u64) -> Piece {
        Piece { content: mix(hash ^ SPAN), tokens: self.weights[&hash] }
    }

    /// Spreads the tokens not covered by known spans over the bytes of the new spans.
    fn weigh(&mut self, row: &Row) {
        let known = row.spans.iter().map_while(|(hash, _)| self.weights.get(hash));
        let (count, known_tokens) =
            known.fold((0, 0_u32), |(count, sum), tokens| (count + 1, sum.saturating_add(*tokens)));
        let new = &row.spans[count..];
        let left = f64::from(row.prompt_tokens.saturating_sub(known_tokens));
        let bytes_all: u64 = new.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        let (mut bytes_before, mut tokens_before) = (0, 0);
        for (hash, bytes) in new {
            bytes_before += u64::from(*bytes);
            let upto = (left * bytes_before as f64 / bytes_all.max(1) as f64).round() as u32;
            // At least one token: otherwise the prompt would equal the one without its last span.
            self.weights.entry(*hash).or_insert((upto - tokens_before).max(1));
            tokens_before = upto;
        }
    }

    /// The request that this prompt continues, and the number of its spans.
    fn parent(&self, row: &Row) -> Option<(RequestRef, usize)> {
        let mut before_last = row.spans.iter().enumerate().rev().skip(1);
        before_last.find_map(|(at, (hash, _))| Some((*self.ends.get(hash)?, at + 1)))
    }

    /// Sets a request's answer to what the next turn has after its prompt; the rest stays unique. Only the
    /// first continuation counts.
    fn answer(&mut self, asked: RequestRef, repeated: &[Piece]) {
        if !self.answered.insert((asked.session, asked.turn)) {
            return;
        }
        let answer = &mut self.turn(asked).answer;
        let own = answer[0];
        let mut left = own.tokens;
        let mut pieces = Vec::new();
        for piece in repeated {
            let taken = piece.tokens.min(left);
            left -= taken;
            pieces.extend((taken > 0).then_some(Piece { tokens: taken, ..*piece }));
        }
        pieces.extend((left > 0).then_some(Piece { tokens: left, ..own }));
        *answer = pieces;
    }
}

/// Tags that keep the content numbers of spans and answers apart.
const SPAN: u64 = 1 << 60;
const ANSWER: u64 = 1 << 58;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sessions(lines: &str) -> (Vec<Session>, Vec<String>, u64) {
        let text = format!("{{\"warmroute_trace\":1}}\n{lines}");
        let mut reading = Reading::new(Path::new("trace"));
        let sessions = read(text.as_bytes(), &mut reading);
        (sessions, reading.notes, reading.bad_lines_total)
    }

    const TOOK_US: u64 = 500;

    fn line(at_us: u64, prompt_tokens: u32, output_tokens: &str, spans: &str) -> String {
        format!(
            "{{\"at_us\":{at_us},\"took_us\":{TOOK_US},\"prompt_tokens\":{prompt_tokens},\"output_tokens\":{output_tokens},\
             \"cached_tokens\":null,\"model\":7,\"session\":null,\"spans\":{spans}}}\n"
        )
    }

    #[test]
    fn the_next_turn_shares_the_previous_prompt_and_its_answer() {
        // Lines are in the order of the requests' ends.
        let second = line(9_000, 200, "5", "[[1,256],[2,44],[3,100],[4,300]]");
        let branch = line(9_500, 150, "5", "[[1,256],[2,44],[8,300]]");
        let first = line(1_000, 75, "20", "[[1,256],[2,44]]");
        let hasty = line(1_010, 100, "5", "[[1,256],[2,44],[9,100]]");
        let (sessions, notes, bad) = sessions(&(second + &branch + &hasty + &first));
        assert_eq!(bad, 0, "{notes:?}");
        let starts: Vec<u64> = sessions.iter().map(|session| session.starts.0).collect();
        assert_eq!(starts, [0, 10, 8_500], "one did not wait for the answer, one is a branch");
        let [first, second] = &sessions[0].turns[..] else { panic!("two turns") };
        assert_eq!(second.think, Micros(8_000 - TOOK_US));
        assert_eq!((tokens(&first.prompt), tokens(&second.prompt)), (75, 200));
        assert_eq!(second.prompt[..2], first.prompt[..]);
        assert_eq!(
            first.answer,
            [Piece { tokens: 20, ..second.prompt[2] }],
            "31 tokens, the answer and more"
        );
        assert_eq!(second.thread.first_tokens, 75);
        assert_eq!(tokens(&second.answer), 5);
    }

    #[test]
    fn a_span_has_the_same_tokens_in_every_prompt() {
        let text = [
            line(0, 100, "1", "[[1,256],[2,144]]"),
            line(1, 90, "null", "[[1,256],[2,144]]"),
            line(2, 60, "7", "[[1,256],[5,1]]"),
        ];
        let (sessions, notes, _) = sessions(&text.concat());
        let prompts: Vec<_> = sessions.iter().map(|session| &session.turns[0].prompt).collect();
        assert_eq!(prompts[0], prompts[1]);
        assert_eq!(prompts[2][0], prompts[0][0]);
        assert_eq!(prompts[2][1].tokens, 1, "no prompt ends in nothing");
        assert_eq!(tokens(&sessions[1].turns[0].answer), 4, "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("1 requests have no answer length")), "{notes:?}");
    }

    #[test]
    fn hostile_numbers_are_bad_lines() {
        let good = line(u64::MAX - 9, 100, "1", "[[1,256]]");
        let known = "[1,256],".repeat(200_000);
        for (bad, what) in [
            (line(5, 100, "1", "[[2,256]]"), "a stamp of another age"),
            (line(u64::MAX, 4_000_000_000, "4000000000", "[[2,4000000000],[3,4000000000]]"), "tokens"),
            (line(u64::MAX, 9, "1", &format!("[{known}[9,1]]")), "a known span, again and again"),
            (
                line(u64::MAX, 9, "1", "[[2,1]]")
                    .replace("\"took_us\":500", "\"took_us\":18446744073709551615"),
                "took",
            ),
        ] {
            let lines = format!("{good}{good}{bad}");
            let (sessions, _, total) = sessions(&lines);
            assert_eq!((sessions.len(), total), (2, 1), "{what}");
        }
    }

    #[test]
    fn unreadable_lines_are_counted() {
        let text =
            line(0, 0, "1", "[[1,2]]") + "{\"warmroute_trace\":2}\n{\"at_us\":1}\n" + &line(5, 1, "1", "[]");
        let (sessions, _, bad) = sessions(&text);
        assert_eq!((sessions.len(), bad), (0, 4));
    }
}
