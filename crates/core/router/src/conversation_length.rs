//! How many requests a conversation has, learned from where prompts part from what caches hold.
//!
//! A prompt that continues all that a cache holds of it is the next request of a conversation. One that has only its beginning in
//! common with something longer, or nothing with anything, is the first. The worker that gets the first request will get the others,
//! because it holds their context. So the longer conversations are, the more the slowdown of a worker's answers counts for the first,
//! and the more of what the worker's cache holds they will evict.

use warmroute_index::MatchEnd;

/// Requests over which the mean is taken, and as how many the assumption at the start counts.
const MEMORY: f32 = 256.0;
const ASSUMED: f32 = 16.0;

/// The most requests of a conversation that count.
const REQUESTS_MAX: f32 = 64.0;

/// One of so many requests of a conversation finds its worker as loaded as the first one did; the others come after pauses. With 1
/// RAG questions lose 4 % in mean TTFT, with 4 agents lose the most of what this is for (docs/study/expected_ttft).
const COUNTED_REQUESTS: f32 = 2.0;

/// A request's place in its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    Later,
}

impl Turn {
    /// What the end of a prompt's longest match shows.
    pub fn of(end: MatchEnd) -> Turn {
        if end.bytes == 0 || end.holds_more { Turn::First } else { Turn::Later }
    }
}

/// The learned length of conversations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConversationLength {
    /// Share of the requests that are the first of a conversation.
    first: f32,
    /// Requests behind that share, up to [`MEMORY`].
    seen: f32,
}

impl Default for ConversationLength {
    fn default() -> ConversationLength {
        ConversationLength { first: 1.0, seen: ASSUMED }
    }
}

impl ConversationLength {
    /// Records a routed request.
    pub fn learn(&mut self, turn: Turn) {
        let is_first = if turn == Turn::First { 1.0 } else { 0.0 };
        self.seen = (self.seen + 1.0).min(MEMORY);
        self.first += (is_first - self.first) / self.seen;
    }

    /// How many times the slowdown of a worker's answers counts for a request.
    #[inline]
    pub fn step_weight(&self, turn: Turn) -> f32 {
        match turn {
            Turn::First => (self.requests() / COUNTED_REQUESTS).max(1.0),
            Turn::Later => 1.0,
        }
    }

    /// Requests of the same conversation that are expected after this one, where it is the first.
    #[inline]
    pub fn later_requests(&self, turn: Turn) -> f32 {
        match turn {
            Turn::First => self.requests() - 1.0,
            Turn::Later => 0.0,
        }
    }

    /// Requests of a conversation.
    fn requests(&self) -> f32 {
        (1.0 / self.first).min(REQUESTS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(requests: usize) -> ConversationLength {
        let mut length = ConversationLength::default();
        for number in 0..4_096 {
            length.learn(if number % requests == 0 { Turn::First } else { Turn::Later });
        }
        length
    }

    #[test]
    fn long_conversations_make_the_first_request_count() {
        assert_eq!(ConversationLength::default().step_weight(Turn::First), 1.0, "nothing is known");
        for (requests, weight) in [(1, 1.0), (2, 1.0), (16, 8.0), (40, 20.0)] {
            let found = learned(requests).step_weight(Turn::First);
            assert!((found / weight - 1.0).abs() < 0.15, "{requests}: {found}");
            assert_eq!(learned(requests).step_weight(Turn::Later), 1.0);
            let later = learned(requests).later_requests(Turn::First);
            assert!((later + 1.0 - requests as f32).abs() < 0.15 * requests as f32, "{requests}: {later}");
            assert_eq!(learned(requests).later_requests(Turn::Later), 0.0);
        }
        assert_eq!(ConversationLength::default().later_requests(Turn::First), 0.0);
    }

    #[test]
    fn a_match_that_ends_inside_something_longer_begins_a_conversation() {
        let turn = |bytes, holds_more| Turn::of(MatchEnd { bytes, holds_more });
        assert_eq!(turn(0, false), Turn::First);
        assert_eq!(turn(4_096, true), Turn::First);
        assert_eq!(turn(4_096, false), Turn::Later);
    }
}
