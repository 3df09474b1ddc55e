//! A response body that counts as a request in progress until it is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};

/// How often a draining connection looks whether a request is in progress, and how often in a row it finds none before
/// it is closed. Its client may have sent a part of its next request.
const CHECK_EVERY: Duration = Duration::from_millis(500);
const CHECKS: u32 = 6;

/// Number of requests in progress on one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestCount(Arc<AtomicUsize>);

/// One request in progress.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<AtomicUsize>);

impl RequestCount {
    pub(crate) fn begin(&self) -> RequestGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(&self.0))
    }

    /// Whether no request is in progress.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Returns when no request has been in progress for a while.
    pub(crate) async fn wait_idle(&self) {
        let mut idle = 0;
        while idle < CHECKS {
            tokio::time::sleep(CHECK_EVERY).await;
            idle = if self.is_zero() { idle + 1 } else { 0 };
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response body with its request.
pub(crate) struct BusyBody<B> {
    pub(crate) body: B,
    pub(crate) _request: RequestGuard,
}

impl<B: Body + Unpin> Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
