//! The switch of a stream from a dead worker to another one.

use std::pin::Pin;
use std::sync::Arc;

use crate::attempt::Attempt;
use crate::dispatch::{Dispatch, StartedResponse};
use crate::gateway_error::GatewayError;
use crate::upstream::Upstream;

/// A switch in progress. It returns the request, for the next switch.
pub(crate) type Switch = Pin<Box<dyn Future<Output = (Box<Dispatch>, Result<Resumed, GatewayError>)> + Send>>;

/// Another worker's response that continues a stream.
pub(crate) struct Resumed {
    pub(crate) attempt: Attempt,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) started: StartedResponse,
}
