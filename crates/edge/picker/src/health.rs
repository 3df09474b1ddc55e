//! `grpc.health.v1.Health`: Envoy and Kubernetes ask whether the picker takes requests.
//!
//! A picker is ready from when its workers are known, which may take as long as the API server is away, until it drains.
//! `liveness` is true before and while it drains: a process that finishes its streams must not be killed.

use crate::grpc::{Messages, Replies, Status, StreamError};
use crate::picker::Picker;
use warmroute_protobuf::{MessageFields, MessageWriter};

/// The service that is alive while the process answers.
const LIVENESS: &str = "liveness";

/// Services that are ready once workers are known, until a drain begins. Charts and gateways ask for different names; the empty one is the whole
/// server.
const READINESS: [&str; 4] =
    ["", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"];

const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;

/// Answers `Check`.
pub(crate) async fn check(picker: &Picker, mut messages: Messages, mut replies: Replies) {
    let checked = match messages.first().await {
        Ok(message) => {
            let is_ready = picker.gateway.are_workers_known() && !picker.drain.has_begun();
            status_of(&message.unwrap_or_default(), is_ready)
        }
        Err(error) => Err(error),
    };
    match checked {
        Ok(Some(status)) => {
            let mut reply = MessageWriter::default();
            reply.number(1, status);
            if replies.send(&reply.finish(), &bytes::Bytes::new()).await.is_ok() {
                replies.finish(Status::Ok, "");
            }
        }
        Ok(None) => replies.finish(Status::NotFound, "unknown service"),
        Err(error) => replies.fail(&error),
    }
}

/// The status of the service that a request names; `None` if it is unknown.
fn status_of(request: &[u8], is_ready: bool) -> Result<Option<u64>, StreamError> {
    let mut service = &b""[..];
    for field in MessageFields::of(request) {
        if let (1, name) = field? {
            service = name.bytes();
        }
    }
    let asks_readiness = READINESS.iter().any(|name| name.as_bytes() == service);
    Ok(match asks_readiness {
        true if is_ready => Some(SERVING),
        true => Some(NOT_SERVING),
        false => (service == LIVENESS.as_bytes()).then_some(SERVING),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picker_without_workers_or_in_a_drain_is_alive_and_not_ready() {
        let status = |service: &str, is_ready| {
            let mut request = MessageWriter::default();
            request.bytes(1, service.as_bytes());
            status_of(&request.finish(), is_ready).unwrap()
        };
        for name in READINESS {
            assert_eq!((status(name, true), status(name, false)), (Some(SERVING), Some(NOT_SERVING)));
        }
        assert_eq!(status_of(&[], true).unwrap(), Some(SERVING), "no name is the whole server");
        assert_eq!(status(LIVENESS, false), Some(SERVING));
        assert_eq!(status("other", true), None);
    }
}
