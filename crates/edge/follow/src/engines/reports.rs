//! `POST /events`: passes reports from the admin listener to the inbox.

use std::sync::Arc;

use serde_json::{Value, json};
use warmroute_events::{PostRefused, ReportInbox};
use warmroute_gateway::{ReportError, ReportSink};
use warmroute_types::Address;

use super::event_sink::{EventOrigin, RouterSink};

/// The inbox as seen by the admin listener.
pub struct ReportEndpoint {
    pub(super) inbox: Arc<ReportInbox>,
    pub(super) sink: Arc<RouterSink>,
}

impl ReportSink for ReportEndpoint {
    fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Value, ReportError> {
        let refused = |status, why: &str| Err(ReportError { status, why: why.to_owned(), expected: None });
        match self.sink.event_origin(worker) {
            EventOrigin::Reporter => {}
            EventOrigin::Unaligned => return refused(503, "this worker's prompts cannot be compared yet"),
            EventOrigin::Engine => {
                return refused(
                    403,
                    "the router reads this worker's events from its engine; to post them instead, set kv-events = { endpoint = \"off\" } for this worker",
                );
            }
        }
        match self.inbox.post(worker, content_type, body) {
            Ok(accepted) => Ok(json!({"next_seq": accepted.next_seq, "unreadable": accepted.unreadable})),
            Err(refused) => {
                let expected = match refused {
                    PostRefused::Gap { expected } => Some(expected),
                    _ => None,
                };
                Err(ReportError { status: refused.status(), why: refused.to_string(), expected })
            }
        }
    }
}
