//! The switch of a stream from a dead worker to another one.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use warmroute_fleet::Worker;

use super::continued_body::with_limits_for;
use crate::attempt::Attempt;
use crate::gateway_error::GatewayError;
use crate::permit::Permit;
use crate::started_response::StartedResponse;
use crate::upstream::Upstream;

/// A request whose stream was interrupted, as the response sees it: it can be sent again.
pub(crate) trait Interrupted: Send {
    /// Takes the request back from a response whose worker failed in the middle.
    fn recover(&mut self, worker: Arc<Worker>, permit: Option<Permit>);

    /// Whether the settings allow to continue a stream that was continued so often and has so many output tokens.
    fn allows_continuation(&self, continuations: u32, output_tokens: u32) -> bool;

    /// The permit, for the response that continues the stream.
    fn take_permit(&mut self) -> Option<Permit>;

    /// Sends the request with the text so far to another worker.
    fn resume(self: Box<Self>, remainder: Remainder) -> Switch;
}

/// A switch in progress. It returns the request, for the next switch.
pub(crate) type Switch =
    Pin<Box<dyn Future<Output = (Box<dyn Interrupted>, Result<Resumed, GatewayError>)> + Send>>;

/// What a stream has delivered, and the request that continues it.
pub(crate) struct Remainder {
    pub(crate) body: Bytes,
    pub(crate) text: String,
    /// Output tokens, by events.
    pub(crate) tokens: u32,
    /// Events with text: fewer tokens cannot have been delivered.
    pub(crate) text_events: u32,
}

impl Remainder {
    /// Corrects the number of delivered tokens, as the next worker counts them, and by it what is left to generate.
    pub(crate) fn recount(&mut self, counted: u32) {
        let tokens = counted.max(self.text_events);
        if let Some(body) = with_limits_for(&self.body, self.tokens, tokens) {
            (self.body, self.tokens) = (body, tokens);
        }
    }
}

/// Another worker's response that continues a stream.
pub(crate) struct Resumed {
    /// Output tokens before, as that worker counts them.
    pub(crate) tokens_before: u32,
    pub(crate) attempt: Attempt,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) started: StartedResponse,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_counts_fewer_tokens_than_events_leaves_no_more_to_generate() {
        let left = |counted: u32| {
            let body = Bytes::from_static(b"{\"max_tokens\":7}");
            let mut remainder = Remainder { body, text: "one two ".to_owned(), tokens: 3, text_events: 2 };
            remainder.recount(counted);
            (String::from_utf8(remainder.body.to_vec()).unwrap(), remainder.tokens)
        };
        assert_eq!(left(5), ("{\"max_tokens\":5}".to_owned(), 5));
        for too_few in [0, 1, 2] {
            assert_eq!(left(too_few), ("{\"max_tokens\":8}".to_owned(), 2), "{too_few}");
        }
    }
}
