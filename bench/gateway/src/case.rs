//! The requests that are sent, and how to tell that an answer is one.
//!
//! Four shapes cover what costs a proxy something: a request as such, a conversation as it is common, a prompt so long
//! that copies show, and an answer in many small chunks.

use std::fmt::Write;

use crate::pace::Pace;
use crate::wire::Answer;

const SENTENCE: &str = "The train for the coast leaves from platform four at six minutes past the hour. ";
const STREAMED_TOKENS: usize = 32;
const UNIQUE_BYTES: usize = 2_048;
/// Everybody is shown it; the one that asks for keys knows it.
pub const CLIENT_KEY: &str = "sk-bench-0123456789abcdef0123456789abcdef";

/// One kind of request.
pub struct Case {
    /// How the table calls it.
    pub name: &'static str,
    /// How fast the engine must go for it.
    pub pace: Pace,
    body: String,
    shape: Shape,
}

/// What an answer must look like.
#[derive(Clone, Copy)]
enum Shape {
    /// One JSON object.
    Whole,
    /// At least this many events, the last being `[DONE]`.
    Events(usize),
}

impl Case {
    /// The cases of these names, or all when none is named.
    pub fn named(names: &[String]) -> Result<Vec<Case>, String> {
        let all = [Case::tiny(), Case::conversation(), Case::long_prompt(), Case::streamed()];
        if let Some(unknown) = names.iter().find(|name| all.iter().all(|case| case.name != **name)) {
            return Err(format!("there is no case `{unknown}`; there are tiny, 8k, 100k and stream"));
        }
        let wanted = |case: &Case| names.is_empty() || names.iter().any(|name| name == case.name);
        Ok(all.into_iter().filter(wanted).collect())
    }

    /// The least a proxy can be asked for.
    pub fn tiny() -> Case {
        let body = body(&[("user", "Hello".to_owned())], r#""max_tokens":1"#);
        Case { name: "tiny", pace: Pace::FlatOut, body, shape: Shape::Whole }
    }

    /// A prompt of 2 KB that no other number has, different from its first bytes on.
    pub fn unique(number: u64) -> Case {
        let body = body(&[("user", unique_text(number))], r#""max_tokens":1"#);
        Case { name: "unique", pace: Pace::FlatOut, body, shape: Shape::Whole }
    }

    fn conversation() -> Case {
        let mut turns = vec![("system", SENTENCE.repeat(20))];
        for _ in 0..4 {
            turns.push(("user", SENTENCE.repeat(8)));
            turns.push(("assistant", SENTENCE.repeat(10)));
        }
        turns.push(("user", SENTENCE.repeat(8)));
        let body = body(&turns, r#""max_tokens":1"#);
        Case { name: "8k", pace: Pace::FlatOut, body, shape: Shape::Whole }
    }

    fn long_prompt() -> Case {
        let text = SENTENCE.repeat(100_000 / SENTENCE.len());
        let body = body(&[("user", text)], r#""max_tokens":1"#);
        Case { name: "100k", pace: Pace::FlatOut, body, shape: Shape::Whole }
    }

    fn streamed() -> Case {
        let options = format!(r#""max_tokens":{STREAMED_TOKENS},"stream":true"#);
        let body = body(&[("user", "Hello".to_owned())], &options);
        Case { name: "stream", pace: Pace::TokenByToken, body, shape: Shape::Events(STREAMED_TOKENS + 1) }
    }

    /// The bytes to send to a server on this port.
    pub fn request(&self, port: u16) -> Vec<u8> {
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
             accept: */*\r\nuser-agent: bench\r\nauthorization: Bearer {CLIENT_KEY}\r\ncontent-length: {}\r\n\r\n",
            self.body.len()
        );
        [head.as_bytes(), self.body.as_bytes()].concat()
    }

    /// Whether this is the answer that was asked for; why not otherwise.
    pub fn check(&self, answer: &Answer) -> Result<(), String> {
        let sound = match self.shape {
            Shape::Whole => is_completion(&answer.body),
            Shape::Events(least) => is_stream(&answer.body, least),
        };
        if answer.status == 200 && sound {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&answer.body);
        let start: String = text.chars().take(200).collect();
        Err(format!("status {}, {} bytes: {start}", answer.status, answer.body.len()))
    }
}

fn body(turns: &[(&str, String)], options: &str) -> String {
    let turn = |(role, text): &(&str, String)| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
    let messages: Vec<String> = turns.iter().map(turn).collect();
    format!(r#"{{"model":"llama-3.1-8b","messages":[{}],{options}}}"#, messages.join(","))
}

/// Words of 16 letters and digits by SplitMix64.
fn unique_text(number: u64) -> String {
    let mut state = number.wrapping_mul(0xd134_2543_de82_ef95);
    let mut text = String::with_capacity(UNIQUE_BYTES + 17);
    while text.len() < UNIQUE_BYTES {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        write!(text, "{:016x} ", mixed ^ (mixed >> 31)).expect("a String takes everything");
    }
    text
}

/// Servers write the fields in different orders, so the ends and the length stand for the whole.
fn is_completion(body: &[u8]) -> bool {
    body.len() > 200 && body.starts_with(b"{") && body.trim_ascii_end().ends_with(b"}")
}

fn is_stream(body: &[u8], events_min: usize) -> bool {
    let events = body.windows(6).filter(|window| window == b"data: ").count();
    body.starts_with(b"data: {") && body.trim_ascii_end().ends_with(b"data: [DONE]") && events > events_min
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, body: body.as_bytes().to_vec(), ..Answer::default() }
    }

    #[test]
    fn bodies_have_the_size_their_names_say() {
        let size_of = |case: Case| case.body.len();
        assert!(size_of(Case::tiny()) < 200);
        assert!((7_500..9_500).contains(&size_of(Case::conversation())), "{}", size_of(Case::conversation()));
        assert!((95_000..105_000).contains(&size_of(Case::long_prompt())));
    }

    #[test]
    fn unique_prompts_differ_from_their_first_bytes_on() {
        let texts: std::collections::BTreeSet<String> =
            (0..10_000).map(|number| unique_text(number)[..16].to_owned()).collect();
        assert_eq!(texts.len(), 10_000);
        assert!((2_048..2_100).contains(&unique_text(1).len()));
    }

    #[test]
    fn an_error_is_no_answer() {
        let error = format!("{{\"error\":\"{}\"}}", "x".repeat(300));
        assert!(Case::tiny().check(&answer(500, &error)).is_err());
        assert!(Case::tiny().check(&answer(200, "{}")).is_err());
    }

    #[test]
    fn a_stream_that_stops_early_is_no_answer() {
        let whole = "data: {}\n\n".repeat(STREAMED_TOKENS + 1) + "data: [DONE]\n\n";
        assert!(Case::streamed().check(&answer(200, &whole)).is_ok());
        assert!(Case::streamed().check(&answer(200, &whole[10..])).is_err(), "one event is missing");
        assert!(Case::streamed().check(&answer(200, &whole[..whole.len() - 14])).is_err(), "no [DONE]");
    }
}
