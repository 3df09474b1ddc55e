//! The part of a prompt that makes its prefix key, as `serve --prefix-key` offers it.
//!
//! ```text
//!   system ▏ first question ▏ answer ▏ next question …
//!   ├─ system ─┤
//!   ├─ tokens=N: the first N, or all up to the first question of a shorter prompt
//!   ├─ windows: the smallest hash of all windows of 256 tokens in the first 4,000
//! ```

use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use crate::Piece;
use crate::prompt::{head_key, token_ids, tokens};
use crate::session::Thread;

/// Windows of production, in tokens: size, reach and stride.
const WINDOW: usize = 256;
const REACH: u32 = 4_000;
const STRIDE: usize = 64;

/// Part of the prompt that makes the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpan {
    /// The first tokens.
    Tokens(u32),
    /// The system prompt; no key without one.
    System,
    /// The smallest hash of all windows at the beginning.
    Windows,
}

impl Default for KeySpan {
    fn default() -> KeySpan {
        KeySpan::Tokens(1_024)
    }
}

impl KeySpan {
    /// Key of a prompt; `None` if it lacks that part.
    pub fn key(self, prompt: &[Piece], thread: Thread) -> Option<u64> {
        match self {
            KeySpan::Tokens(count) => Some(head_key(prompt, reach(prompt, thread, count))),
            KeySpan::System => (thread.system_tokens > 0).then(|| head_key(prompt, thread.system_tokens)),
            KeySpan::Windows => Some(least_window(prompt, reach(prompt, thread, REACH))),
        }
    }
}

/// A prompt shorter than the key is keyed by the part that stays the same while its conversation grows.
fn reach(prompt: &[Piece], thread: Thread, count: u32) -> u32 {
    if tokens(prompt) < count { thread.first_tokens } else { count }
}

fn least_window(prompt: &[Piece], reach: u32) -> u64 {
    let mut ids = Vec::new();
    token_ids(prompt.iter().copied(), 0, reach, &mut ids);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let windows = bytes.windows(WINDOW * 4).step_by(STRIDE * 4).map(xxh3_64);
    windows.min().unwrap_or_else(|| xxh3_64(&bytes))
}

impl FromStr for KeySpan {
    type Err = String;

    /// `system`, `windows` or `tokens=N`.
    fn from_str(text: &str) -> Result<KeySpan, String> {
        match text.split_once('=') {
            None if text == "system" => Ok(KeySpan::System),
            None if text == "windows" => Ok(KeySpan::Windows),
            Some(("tokens", count)) => match count.parse() {
                Ok(count) if count > 0 => Ok(KeySpan::Tokens(count)),
                _ => Err(format!(
                    "`key={text}`: tokens takes a whole number from 1 on, such as key=tokens=256"
                )),
            },
            _ => Err(format!("`key={text}`: key takes system, windows or tokens=N, such as key=tokens=256")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    fn piece(text: u64, tokens: u32) -> Piece {
        Piece { content: mix(text), tokens }
    }

    #[test]
    fn a_key_covers_its_part_of_the_prompt_and_no_more() {
        let thread = Thread { key: None, first_tokens: 700, system_tokens: 600 };
        let (one, other) = ([piece(1, 600), piece(2, 100)], [piece(1, 600), piece(3, 100)]);
        let equal = |span: &str| {
            let span: KeySpan = span.parse().unwrap();
            span.key(&one, thread) == span.key(&other, thread)
        };
        assert!(equal("system"), "the same system prompt");
        assert!(equal("tokens=600"));
        assert!(!equal("tokens=601") && !equal("tokens=1024"), "the question is in the key");
        let without = Thread { system_tokens: 0, ..thread };
        assert_eq!(KeySpan::System.key(&one, without), None);
        let grown = [&one[..], &[piece(4, 50)]].concat();
        for span in [KeySpan::Tokens(1_024), KeySpan::System, KeySpan::Windows] {
            assert_eq!(span.key(&one, thread), span.key(&grown, thread), "{span:?}");
        }
    }

    #[test]
    fn prompts_that_share_most_windows_mostly_share_the_key() {
        let share = |tail: u32| {
            let keys = (0..200).map(|draw| {
                let head = piece(draw << 20, 4_000 - tail);
                let prompt = |own: u64| [head, piece(draw << 20 | own, tail)];
                let thread = Thread { first_tokens: 4_000, ..Thread::default() };
                KeySpan::Windows.key(&prompt(1), thread) == KeySpan::Windows.key(&prompt(2), thread)
            });
            keys.filter(|is_equal| *is_equal).count()
        };
        assert!(share(200) > 150, "{}", share(200));
        assert!(share(3_800) < 20, "{}", share(3_800));
    }

    #[test]
    fn a_key_that_is_not_known_is_refused() {
        for text in ["", "words", "tokens", "tokens=0", "tokens=x"] {
            assert!(text.parse::<KeySpan>().is_err(), "{text}");
        }
    }
}
