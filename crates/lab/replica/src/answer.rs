//! An answer, decided before it is generated.
//!
//! The engine model receives the length of the answer and the names of its blocks along with the request. So the text
//! is decided first, and generating it only takes time.

use warmroute_engine::Request;

use crate::chain::Chain;
use crate::filler::TextSoFar;
use crate::tokens::{self, Token, Tokenizer};

/// The text of an answer, and how it ends.
#[derive(Debug)]
pub(crate) struct Answer {
    /// All text the client sees.
    pub(crate) text: String,
    /// Tokens generated, including those that the client does not see.
    pub(crate) tokens: u32,
    /// Why it ends.
    pub(crate) finish: Finish,
    /// The tokenizer of its text.
    pub(crate) tokenizer: Tokenizer,
}

/// Why an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn.
    EndOfTurn,
    /// It reached the most tokens it was allowed.
    Length,
    /// The text contains one of the stop strings.
    StopString(String),
}

/// How long an answer may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model ends its turn after this many tokens, including the end of turn.
    Natural(u32),
    /// The answer is cut off after this many tokens.
    Cut(u32),
}

impl Answer {
    /// Decides the answer to the prompt in `chain`, and the request to the engine.
    pub(crate) fn plan(
        mut chain: Chain,
        text_so_far: TextSoFar,
        ending: Ending,
        stops: &[String],
        tokenizer: Tokenizer,
    ) -> Planned {
        let prompt_tokens = chain.tokens();
        let Decided { seen, token_ids } = Answer::decide(text_so_far, ending, stops, tokenizer);
        chain.extend(token_ids.iter().copied());
        let request = Request { chain: chain.into_names(), prompt_tokens, output_tokens: seen.tokens };
        Planned { answer: seen, request, token_ids }
    }

    fn decide(text_so_far: TextSoFar, ending: Ending, stops: &[String], tokenizer: Tokenizer) -> Decided {
        let text_tokens = match ending {
            Ending::Natural(tokens) => tokens.saturating_sub(1),
            Ending::Cut(tokens) => tokens,
        };
        let mut text = text_so_far.continue_by(text_tokens, tokenizer.chunk_bytes());
        if let Ending::Natural(_) = ending {
            finish_sentence(&mut text);
        }
        match first_stop(&text, stops) {
            Some((at, stop)) => Decided::stopped(text, at, stop, tokenizer),
            None => Decided::run_out(text, ending, tokenizer),
        }
    }

    /// The text of one output token; empty for tokens without text.
    pub(crate) fn piece(&self, index: u32) -> &str {
        let chunk_bytes = self.tokenizer.chunk_bytes();
        let start = (index as usize * chunk_bytes).min(self.text.len());
        let end = (start + chunk_bytes).min(self.text.len());
        &self.text[start..end]
    }
}

/// An answer, the request to the engine, and the tokens that it will generate.
pub(crate) struct Planned {
    pub(crate) answer: Answer,
    pub(crate) request: Request,
    pub(crate) token_ids: Vec<Token>,
}

/// An answer with the tokens that are generated for it.
struct Decided {
    seen: Answer,
    token_ids: Vec<Token>,
}

impl Decided {
    /// The engine generates to the end of the stop string; the client sees what is before it.
    fn stopped(mut text: String, at: usize, stop: &str, tokenizer: Tokenizer) -> Decided {
        let tokens = (at + stop.len()).div_ceil(tokenizer.chunk_bytes());
        let mut token_ids = Vec::with_capacity(tokens);
        let said = (tokens * tokenizer.chunk_bytes()).min(text.len());
        tokenizer.encode(&text.as_bytes()[..said], &mut token_ids);
        text.truncate(at);
        let finish = Finish::StopString(stop.to_owned());
        Decided { seen: Answer { text, tokens: tokens as u32, finish, tokenizer }, token_ids }
    }

    fn run_out(text: String, ending: Ending, tokenizer: Tokenizer) -> Decided {
        let mut token_ids = Vec::new();
        tokenizer.encode(text.as_bytes(), &mut token_ids);
        let (tokens, finish) = match ending {
            Ending::Natural(tokens) => {
                token_ids.push(tokens::END_OF_TURN);
                (tokens, Finish::EndOfTurn)
            }
            Ending::Cut(tokens) => (tokens, Finish::Length),
        };
        Decided { seen: Answer { text, tokens, finish, tokenizer }, token_ids }
    }
}

/// Filler ends anywhere; a model that ends its turn ends with a full stop.
fn finish_sentence(text: &mut String) {
    if text.pop().is_some() {
        text.push('.');
    }
}

fn first_stop<'a>(text: &str, stops: &'a [String]) -> Option<(usize, &'a str)> {
    let wanted = stops.iter().filter(|stop| !stop.is_empty());
    wanted.filter_map(|stop| Some((text.find(stop.as_str())?, stop.as_str()))).min_by_key(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ending: Ending, stops: &[&str]) -> (Answer, Request) {
        let mut chain = Chain::new("m", "", 16);
        chain.extend(0..20);
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let planned = Answer::plan(chain, TextSoFar::of_prompt(0, &[]), ending, &stops, Tokenizer::Quads);
        (planned.answer, planned.request)
    }

    fn streamed(answer: &Answer) -> String {
        (0..answer.tokens).map(|index| answer.piece(index)).collect()
    }

    #[test]
    fn an_answer_that_is_cut_has_all_its_tokens_in_text() {
        let (answer, request) = plan(Ending::Cut(30), &[]);
        assert_eq!((answer.tokens, answer.text.len()), (30, 120));
        assert_eq!(answer.finish, Finish::Length);
        assert_eq!((request.prompt_tokens, request.output_tokens), (20, 30));
        assert_eq!(request.chain.len(), 50 / 16);
        assert_eq!(streamed(&answer), answer.text);
    }

    #[test]
    fn an_answer_that_ends_by_itself_ends_with_a_token_without_text() {
        let (answer, request) = plan(Ending::Natural(12), &[]);
        assert_eq!((answer.tokens, answer.text.len()), (12, 44));
        assert!(answer.text.ends_with('.'));
        assert_eq!(answer.finish, Finish::EndOfTurn);
        assert_eq!(request.chain.len(), 32 / 16);
        assert_eq!(streamed(&answer), answer.text);
    }

    #[test]
    fn a_stop_string_ends_the_answer_before_it() {
        let (whole, _) = plan(Ending::Cut(100), &[]);
        let at = whole.text.find(". ").unwrap();
        let (answer, request) = plan(Ending::Cut(100), &["never said", ". "]);
        assert_eq!(answer.text, whole.text[..at]);
        assert_eq!(answer.finish, Finish::StopString(". ".to_owned()));
        assert_eq!(request.output_tokens as usize, (at + 2).div_ceil(4));
        assert_eq!(streamed(&answer), answer.text);
    }

    #[test]
    fn the_shortest_answer_is_one_token() {
        let (answer, request) = plan(Ending::Natural(1), &[]);
        assert_eq!((answer.text.as_str(), answer.tokens, request.output_tokens), ("", 1, 1));
    }
}
