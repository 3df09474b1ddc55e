//! LooGLE: long documents with questions, or with a summary.
//!
//! `qa_pairs` is a list, or the text of a Python list as published: only the strings after `'Q'` and `'A'` are read.
//! A document without questions has its summary in `output`. One reader asks all questions of a document, one after
//! another; every prompt is the document and one question.

use serde::Deserialize;
use serde_json::Value;

use super::text::{Message, Role, Timing, pieces};
use super::{Reading, lines};
use crate::{Session, Thread, Turn, mix, tokens};

/// The request for a summary, for documents without questions.
const SUMMARIZE: &str = "Summarize the text above.";

#[derive(Deserialize)]
struct Document {
    input: String,
    qa_pairs: Value,
    #[serde(default)]
    output: String,
}

/// A question and its answer.
#[derive(Debug, PartialEq, Eq)]
struct Pair {
    question: String,
    answer: String,
}

/// Reads one session per document.
pub fn read(bytes: &[u8], timing: &mut Timing, reading: &mut Reading<'_>) -> Vec<Session> {
    let mut sessions = Vec::new();
    for (line, document) in lines::parse::<Document>(bytes, reading) {
        let pairs = document.pairs();
        if pairs.is_empty() {
            reading.bad(line, "the document has neither questions nor a summary");
            continue;
        }
        sessions.push(reader(&document.input, &pairs, mix(line as u64 ^ (1 << 57)), timing));
    }
    reading.notes.push("one reader asks all questions of a document, each of the document alone".to_owned());
    sessions
}

fn reader(document: &str, pairs: &[Pair], key: u64, timing: &mut Timing) -> Session {
    let mut first_tokens = 0;
    let turns = pairs.iter().map(|pair| {
        let asked = Message { role: Role::User, text: format!("{document}\n\n{}", pair.question) };
        let said = Message { role: Role::Assistant, text: pair.answer.clone() };
        let mut both = pieces(&[asked, said]).into_iter();
        let (prompt, answer) = (both.next().unwrap_or_default(), both.next().unwrap_or_default());
        if first_tokens == 0 {
            first_tokens = tokens(&prompt);
        }
        let thread = Thread { key: Some(key), first_tokens, system_tokens: 0 };
        Turn { think: timing.think(), thread, prompt, answer }
    });
    let turns = turns.collect();
    Session { starts: timing.start(), turns }
}

impl Document {
    fn pairs(&self) -> Vec<Pair> {
        let pairs = match &self.qa_pairs {
            Value::String(text) => python_pairs(text),
            Value::Array(list) => list.iter().filter_map(json_pair).collect(),
            _ => Vec::new(),
        };
        let has_summary = !self.output.is_empty() && self.output != "none";
        match pairs.is_empty() && has_summary {
            true => vec![Pair { question: SUMMARIZE.to_owned(), answer: self.output.clone() }],
            false => pairs,
        }
    }
}

fn json_pair(item: &Value) -> Option<Pair> {
    let text = |key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(Pair { question: text("Q")?, answer: text("A")? })
}

/// Pairs in the text of a Python list of dictionaries.
fn python_pairs(text: &str) -> Vec<Pair> {
    let (mut pairs, mut question, mut answer) = (Vec::new(), None, None);
    let strings = python_strings(text);
    for (at, string) in strings.iter().enumerate() {
        let value = || strings.get(at + 1).map(|next| next.text.clone());
        match (string.is_key, string.text.as_str()) {
            (true, "Q") => question = value(),
            (true, "A") => answer = value(),
            _ => continue,
        }
        if let (Some(asked), Some(said)) = (&question, &answer) {
            pairs.push(Pair { question: asked.clone(), answer: said.clone() });
            (question, answer) = (None, None);
        }
    }
    pairs
}

/// A string literal; a key of a dictionary is followed by a colon.
struct Literal {
    text: String,
    is_key: bool,
}

/// All string literals of a Python expression, in order. What is between them is left out.
fn python_strings(text: &str) -> Vec<Literal> {
    let (mut strings, mut chars) = (Vec::new(), text.chars().peekable());
    while let Some(quote) = chars.next() {
        if quote != '\'' && quote != '"' {
            continue;
        }
        let mut own = String::new();
        while let Some(next) = chars.next() {
            match next {
                '\\' => own.extend(chars.next().map(|escaped| if escaped == 'n' { '\n' } else { escaped })),
                _ if next == quote => break,
                _ => own.push(next),
            }
        }
        strings.push(Literal { text: own, is_key: chars.peek() == Some(&':') });
    }
    strings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(question: &str, answer: &str) -> Pair {
        Pair { question: question.to_owned(), answer: answer.to_owned() }
    }

    #[test]
    fn questions_are_read_from_a_python_list() {
        let text = r#"[{'Q': "Who's he?", 'A': 'A "king".\nOf Spain', 'type': 'x', 'S': ['Q', "it's"]}, {'S': 'a', 'Q': 'When?', 'A': 'Then'}]"#;
        let text = text.replace("\\\\", "\\");
        assert_eq!(python_pairs(&text), [pair("Who's he?", "A \"king\".\nOf Spain"), pair("When?", "Then")]);
        assert_eq!(python_pairs("none"), []);
        assert_eq!(python_pairs("[{'Q': 'cut"), [], "a question without its answer");
    }
}
