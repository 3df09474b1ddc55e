//! `POST /events`: what reporters tell of engines that publish no events themselves.
//!
//! What is in a post is none of the gateway's business: it checks who posts and for whom, and hands it on.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use warmroute_types::Address;

use super::workers::parameter;
use super::{Answer, Problem, as_json};
use crate::gateway::Gateway;

/// Posts are batches of 100 ms, snapshots are larger.
pub(super) const BODY_BYTES_MAX: usize = 32 << 20;

pub(super) const NOT_TAKEN: &str = "events are not taken: start the gateway with --events-token";

/// Takes reporters' posts.
pub trait Reports: Send + Sync {
    /// A post for a worker of the fleet; what to answer.
    fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Value, ReportsRefused>;
}

/// A post that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportsRefused {
    /// The HTTP status it deserves.
    pub status: u16,
    /// Why.
    pub why: String,
    /// For a post that came too early: the number that is expected.
    pub expected: Option<u64>,
}

/// Where posts are taken from those who may.
pub(super) struct Desk {
    reports: Arc<dyn Reports>,
    /// The header that is expected.
    authorization: String,
}

impl Desk {
    pub fn new(reports: Arc<dyn Reports>, token: &str) -> Desk {
        Desk { reports, authorization: format!("Bearer {token}") }
    }

    pub fn admit(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        if is_same(given, self.authorization.as_bytes()) {
            return Ok(());
        }
        Err(Problem(StatusCode::UNAUTHORIZED, "expected Authorization: Bearer TOKEN".to_owned()))
    }

    pub fn take(&self, gateway: &Gateway, headers: &HeaderMap, query: &str, body: &[u8]) -> Answer {
        let worker = addressee(gateway, query)?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        match self.reports.post(&worker, kind, body) {
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
}

/// The worker that a post is about: one of the fleet.
fn addressee(gateway: &Gateway, query: &str) -> Result<Address, Problem> {
    let bad = |why: &str| Problem(StatusCode::BAD_REQUEST, why.to_owned());
    let url = parameter(query, "worker").ok_or_else(|| bad("say whose: POST /events?worker=URL"))?;
    let rank = parameter(query, "rank").map(|rank| rank.parse::<u16>()).transpose();
    let rank = rank.map_err(|_| bad("rank must be a number"))?;
    let address = Address { url: url.trim_end_matches('/').to_owned(), rank };
    let is_known = gateway.router.workers().iter().any(|view| view.worker.address == address);
    let unknown = || Problem(StatusCode::NOT_FOUND, format!("no such worker: {address}"));
    if is_known { Ok(address) } else { Err(unknown()) }
}

/// In a time that does not tell how much was right.
fn is_same(given: &[u8], expected: &[u8]) -> bool {
    let differences = given.iter().zip(expected).fold(0, |differences, (a, b)| differences | (a ^ b));
    given.len() == expected.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn only_the_whole_token_is_the_token() {
        assert!(is_same(b"Bearer x", b"Bearer x"));
        for other in [&b""[..], b"Bearer ", b"Bearer xy", b"bearer x", b"Bearer y"] {
            assert!(!is_same(other, b"Bearer x"));
        }
    }
}
