//! What an engine said about a prompt, against what was expected of it.

use warmroute_types::Usage;

use crate::{PromptChunks, PromptText};

/// What an engine said about a request, with what the request was.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The model that answered.
    pub model: Option<&'a str>,
    /// The prompt, where it was looked up.
    pub prompt: Option<PromptChunks<'a>>,
    /// The same as engines write it, where it was looked up so.
    pub texts: &'a [PromptText<'a>],
    /// What was used.
    pub usage: Usage,
    /// What it means when the engine says nothing about cached tokens.
    pub silence: Silence,
    /// Whether the prompt's bytes are all that its tokens were made of.
    pub content: Content,
}

/// What a prompt is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// Text: bytes and tokens are in proportion.
    #[default]
    Text,
    /// Images or sounds too, which are a hash to us and thousands of tokens to the engine.
    Media,
}

/// What it means when an engine says nothing about cached tokens in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// None were, provided that it has said a number before: engines leave a zero out.
    MeansZero,
    /// This API may never say it.
    MeansNothing,
}

/// Predicted and found, for one request. Tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Expected in the cache; `None` when nothing was predicted.
    pub predicted: Option<u32>,
    /// Found there; `None` when the engine does not say.
    pub cached: Option<u32>,
    /// Promised and not there.
    pub stale: u32,
    /// There and not promised.
    pub missed: u32,
}

/// What was expected in the cache. Tokens per byte differ within a prompt (another language after an English system
/// prompt), so there may be two honest ways to count: only what is below both is stale, and only what is above both missed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub tokens: u32,
    pub counted_otherwise: u32,
}

impl From<u32> for Expected {
    fn from(tokens: u32) -> Expected {
        Expected { tokens, counted_otherwise: tokens }
    }
}

impl Feedback {
    /// Differences up to `margin` are how chunks and blocks fall, and mean nothing.
    pub(crate) fn of(usage: Usage, expected: Option<Expected>, margin: u32) -> Feedback {
        let beyond =
            |more: u32, less: u32| Some(more.saturating_sub(less)).filter(|&by| by > margin).unwrap_or(0);
        let both = expected.zip(usage.cached_tokens);
        let stale = |(expected, cached): (Expected, u32)| {
            beyond(expected.tokens.min(expected.counted_otherwise), cached)
        };
        let missed = |(expected, cached): (Expected, u32)| {
            beyond(cached, expected.tokens.max(expected.counted_otherwise))
        };
        Feedback {
            prompt_tokens: usage.prompt_tokens,
            predicted: expected.map(|expected| expected.tokens),
            cached: usage.cached_tokens,
            stale: both.map_or(0, stale),
            missed: both.map_or(0, missed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_differences_count_and_unknown_is_not_zero() {
        let feedback = |predicted: Option<u32>, cached_tokens| {
            let usage = Usage { prompt_tokens: 1_000, output_tokens: 5, cached_tokens };
            let feedback = Feedback::of(usage, predicted.map(Expected::from), 80);
            (feedback.stale, feedback.missed)
        };
        assert_eq!(feedback(Some(500), Some(420)), (0, 0));
        assert_eq!(feedback(Some(500), Some(419)), (81, 0));
        assert_eq!(feedback(Some(500), Some(581)), (0, 81));
        assert_eq!(feedback(Some(500), None), (0, 0));
        assert_eq!(feedback(None, Some(900)), (0, 0));
    }

    #[test]
    fn what_can_be_counted_in_two_ways_must_be_wrong_in_both() {
        for (cached, stale, missed) in [(400, 100, 0), (450, 0, 0), (700, 0, 0), (800, 0, 100)] {
            let usage = Usage { prompt_tokens: 1_000, output_tokens: 5, cached_tokens: Some(cached) };
            let expected = Expected { tokens: 700, counted_otherwise: 500 };
            let feedback = Feedback::of(usage, Some(expected), 80);
            assert_eq!((feedback.stale, feedback.missed), (stale, missed), "{cached}");
        }
    }
}
