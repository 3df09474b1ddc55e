//! What an engine said about a prompt, against what was expected of it.

use warmroute_types::Usage;

use crate::PromptChunks;

/// What an engine said about a request, with what the request was.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The model that answered.
    pub model: Option<&'a str>,
    /// The prompt, where it was looked up.
    pub prompt: Option<PromptChunks<'a>>,
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

impl Feedback {
    /// Differences up to `margin` are how chunks and blocks fall, and mean nothing.
    pub(crate) fn of(usage: Usage, predicted: Option<u32>, margin: u32) -> Feedback {
        let beyond =
            |more: u32, less: u32| Some(more.saturating_sub(less)).filter(|&by| by > margin).unwrap_or(0);
        let both = predicted.zip(usage.cached_tokens);
        Feedback {
            prompt_tokens: usage.prompt_tokens,
            predicted,
            cached: usage.cached_tokens,
            stale: both.map_or(0, |(predicted, cached)| beyond(predicted, cached)),
            missed: both.map_or(0, |(predicted, cached)| beyond(cached, predicted)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_differences_count_and_unknown_is_not_zero() {
        let feedback = |predicted, cached_tokens| {
            let usage = Usage { prompt_tokens: 1_000, output_tokens: 5, cached_tokens };
            let feedback = Feedback::of(usage, predicted, 80);
            (feedback.stale, feedback.missed)
        };
        assert_eq!(feedback(Some(500), Some(420)), (0, 0));
        assert_eq!(feedback(Some(500), Some(419)), (81, 0));
        assert_eq!(feedback(Some(500), Some(581)), (0, 81));
        assert_eq!(feedback(Some(500), None), (0, 0));
        assert_eq!(feedback(None, Some(900)), (0, 0));
    }
}
