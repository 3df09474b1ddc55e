//! The switch of a stream from a dead worker to another one.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::continued_body::with_limits_for;
use crate::attempt::Attempt;
use crate::dispatch::{Dispatch, StartedResponse};
use crate::gateway_error::GatewayError;
use crate::upstream::Upstream;

/// A switch in progress. It returns the request, for the next switch.
pub(crate) type Switch = Pin<Box<dyn Future<Output = (Box<Dispatch>, Result<Resumed, GatewayError>)> + Send>>;

/// What a stream has delivered, and the request that continues it.
pub(crate) struct Remainder {
    pub(crate) body: Bytes,
    pub(crate) text: String,
    /// Output tokens, by events.
    pub(crate) tokens: u32,
}

impl Remainder {
    /// Corrects the number of delivered tokens, and by it what is left to generate.
    pub(crate) fn recount(&mut self, tokens: u32) {
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
