//! `POST /events`: what reporters tell of engines that publish no events themselves.
//!
//! What is in a post is none of the gateway's business: it checks who posts and for whom, and hands it on.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use warmroute_types::Address;

use super::workers::parameter;
use super::{AdminError, AdminResult, UNAUTHORIZED, as_json};
use crate::Token;
use crate::gateway::Gateway;

/// Posts are batches of 100 ms, snapshots are larger.
pub(super) const BODY_BYTES_MAX: usize = 32 << 20;

/// A post up to this size is read where it arrives.
const READ_AT_ONCE_BYTES_MAX: usize = 1 << 20;

pub(super) const EVENTS_DISABLED: &str = "events are not taken: start the gateway with --events-token";

/// Takes reporters' posts.
pub trait ReportSink: Send + Sync {
    /// A post for a worker of the fleet; what to answer.
    fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Value, ReportError>;
}

/// A post that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportError {
    /// The HTTP status it deserves.
    pub status: u16,
    /// Why.
    pub why: String,
    /// For a post that came too early: the number that is expected.
    pub expected: Option<u64>,
}

/// Where posts are taken from those who may.
pub(super) struct ReportReceiver {
    reports: Arc<dyn ReportSink>,
    token: Token,
}

impl ReportReceiver {
    pub fn new(reports: Arc<dyn ReportSink>, token: Token) -> ReportReceiver {
        ReportReceiver { reports, token }
    }

    pub fn authorize(&self, headers: &HeaderMap) -> Result<(), AdminError> {
        match self.token.is_shown(headers) {
            true => Ok(()),
            false => Err(AdminError(StatusCode::UNAUTHORIZED, UNAUTHORIZED.to_owned())),
        }
    }

    pub async fn receive(
        &self,
        gateway: &Gateway,
        headers: &HeaderMap,
        query: &str,
        body: Bytes,
    ) -> AdminResult {
        let worker = worker_parameter(gateway, query)?;
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

    /// Reading a snapshot of megabytes takes longer than a thread that serves sockets can be spared.
    async fn post(&self, worker: Address, kind: &str, body: Bytes) -> Result<Value, ReportError> {
        if body.len() <= READ_AT_ONCE_BYTES_MAX {
            return self.reports.post(&worker, kind, &body);
        }
        let (reports, kind) = (Arc::clone(&self.reports), kind.to_owned());
        let read = tokio::task::spawn_blocking(move || reports.post(&worker, &kind, &body)).await;
        read.unwrap_or_else(|lost| Err(ReportError { status: 500, why: lost.to_string(), expected: None }))
    }
}

/// The worker that a post is about: one of the fleet.
fn worker_parameter(gateway: &Gateway, query: &str) -> Result<Address, AdminError> {
    let bad = |why: &str| AdminError(StatusCode::BAD_REQUEST, why.to_owned());
    let url = parameter(query, "worker").ok_or_else(|| bad("say whose: POST /events?worker=URL"))?;
    let rank = parameter(query, "rank").map(|rank| rank.parse::<u16>()).transpose();
    let rank = rank.map_err(|_| bad("rank must be a number"))?;
    let address = Address { url: url.trim_end_matches('/').to_owned(), rank };
    let is_known = gateway.router.workers().iter().any(|view| view.worker.address == address);
    let unknown = || AdminError(StatusCode::NOT_FOUND, format!("no such worker: {address}"));
    if is_known { Ok(address) } else { Err(unknown()) }
}
