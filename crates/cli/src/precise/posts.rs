//! `POST /events`: the admin listener's posts, into the inbox.

use std::sync::Arc;

use serde_json::{Value, json};
use warmroute_events::{Inbox, Refused};
use warmroute_gateway::{Reports, ReportsRefused};
use warmroute_types::Address;

/// The inbox as the admin listener sees it.
pub struct Posts(pub Arc<Inbox>);

impl Reports for Posts {
    fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Value, ReportsRefused> {
        match self.0.post(worker, content_type, body) {
            Ok(accepted) => Ok(json!({"next_seq": accepted.next_seq, "unreadable": accepted.unreadable})),
            Err(refused) => {
                let expected = match refused {
                    Refused::Gap { expected } => Some(expected),
                    _ => None,
                };
                Err(ReportsRefused { status: refused.status(), why: refused.to_string(), expected })
            }
        }
    }
}
