//! The cached tokens that an engine reports, compared with the prediction.

use warmroute_types::Usage;

/// Predicted and reported cached tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Tokens of the prompt, as the engine counted them.
    pub prompt_tokens: u32,
    /// Tokens predicted in the cache; `None` without a prediction.
    pub predicted: Option<u32>,
    /// Tokens predicted in the cache of the candidate that held most; `None` without a prediction.
    pub reachable: Option<u32>,
    /// Tokens found in the cache; `None` if not reported.
    pub cached: Option<u32>,
    /// Tokens predicted and not found.
    pub stale: u32,
    /// Tokens found and not predicted.
    pub missed: u32,
}

/// The prediction, counted in two ways, because tokens per byte differ within a prompt (another language
/// after an English system prompt). Only counts below both are stale, and only counts above both are missed.
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
    /// Compares usage and prediction. Differences up to `margin` come from chunk and block boundaries and do
    /// not count.
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
            reachable: None,
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
    fn differences_within_the_margin_and_unknown_counts_are_ignored() {
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
    fn a_difference_counts_only_if_both_countings_agree() {
        for (cached, stale, missed) in [(400, 100, 0), (450, 0, 0), (700, 0, 0), (800, 0, 100)] {
            let usage = Usage { prompt_tokens: 1_000, output_tokens: 5, cached_tokens: Some(cached) };
            let expected = Expected { tokens: 700, counted_otherwise: 500 };
            let feedback = Feedback::of(usage, Some(expected), 80);
            assert_eq!((feedback.stale, feedback.missed), (stale, missed), "{cached}");
        }
    }
}
