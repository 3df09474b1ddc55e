//! `POST /events`: KV events posted by reporters, for engines that do not publish them.
//!
//! The gateway checks the sender and the worker. It does not read the body.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use warmroute_policy::Standard;
use warmroute_router::Router;
use warmroute_types::Address;

use super::workers::parameter;
use super::{AdminError, AdminResult, UNAUTHORIZED, as_json};
use crate::Token;

/// Posts are batches of 100 ms; snapshots are larger.
pub(super) const BODY_BYTES_MAX: usize = 32 << 20;

/// Larger posts are read on a blocking thread.
const READ_AT_ONCE_BYTES_MAX: usize = 1 << 20;

pub(super) const EVENTS_DISABLED: &str = "POST /events is disabled: start the gateway with --events-token";

/// Receives reporters' posts.
pub trait ReportSink: Send + Sync {
    /// Handles a post for a worker of the fleet. Returns the response body.
    fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Value, ReportError>;
}

/// A rejected post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportError {
    /// The HTTP status.
    pub status: u16,
    /// The reason.
    pub why: String,
    /// The expected sequence number, if the post came too early.
    pub expected: Option<u64>,
}

/// Checks posts and hands them on.
pub(super) struct ReportReceiver {
    reports: Arc<dyn ReportSink>,
    token: Token,
}

impl ReportReceiver {
    pub fn new(reports: Arc<dyn ReportSink>, token: Token) -> ReportReceiver {
        ReportReceiver { reports, token }
    }

    pub fn authorize(&self, headers: &HeaderMap) -> Result<(), AdminError> {
        match self.token.matches(headers) {
            true => Ok(()),
            false => Err(AdminError(StatusCode::UNAUTHORIZED, UNAUTHORIZED.to_owned())),
        }
    }

    pub async fn receive(
        &self,
        router: &Router<Standard>,
        headers: &HeaderMap,
        query: &str,
        body: Bytes,
    ) -> AdminResult {
        let worker = worker_parameter(router, query)?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        match self.post(worker, kind, body).await {
            Ok(accepted) => Ok(as_json(&accepted)),
            Err(refused) => {
                let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
                let mut answer =
                    as_json(&json!({"error": {"message": refused.why}, "expected": refused.expected}));
                *answer.status_mut() = status;
                Ok(answer)
            }
        }
    }

    /// Large snapshots take too long for a thread that serves sockets.
    async fn post(&self, worker: Address, kind: &str, body: Bytes) -> Result<Value, ReportError> {
        if body.len() <= READ_AT_ONCE_BYTES_MAX {
            return self.reports.post(&worker, kind, &body);
        }
        let (reports, kind) = (Arc::clone(&self.reports), kind.to_owned());
        let read = tokio::task::spawn_blocking(move || reports.post(&worker, &kind, &body)).await;
        read.unwrap_or_else(|lost| Err(ReportError { status: 500, why: lost.to_string(), expected: None }))
    }
}

/// The worker that a post is about. It must belong to the fleet.
fn worker_parameter(router: &Router<Standard>, query: &str) -> Result<Address, AdminError> {
    let bad = |why: &str| AdminError(StatusCode::BAD_REQUEST, why.to_owned());
    let url = parameter(query, "worker").ok_or_else(|| bad("missing parameter: POST /events?worker=URL"))?;
    let rank = parameter(query, "rank").map(|rank| rank.parse::<u16>()).transpose();
    let rank = rank.map_err(|_| bad("rank must be a number"))?;
    let address = Address { url: url.trim_end_matches('/').to_owned(), rank };
    let is_known = router.inspect().workers().iter().any(|view| view.worker.address == address);
    let unknown = || AdminError(StatusCode::NOT_FOUND, format!("no such worker: {address}"));
    if is_known { Ok(address) } else { Err(unknown()) }
}
