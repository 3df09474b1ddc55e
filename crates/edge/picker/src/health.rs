//! `grpc.health.v1.Health`: Envoy and Kubernetes ask whether the picker takes requests.
//!
//! The listener opens when workers are known, so a picker that answers is ready until it drains. `liveness` stays true
//! while it drains: a process that finishes its streams must not be killed.

use crate::grpc::{Messages, Replies, Status, StreamError};
use crate::picker::Picker;
use warmroute_protobuf::{MessageFields, MessageWriter};

/// The service that is alive while the process answers.
const LIVENESS: &str = "liveness";

/// Services that are ready until a drain begins. Charts and gateways ask for different names; the empty one is the whole
/// server.
const READINESS: [&str; 4] =
    ["", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"];

const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;

/// Answers `Check`.
pub(crate) async fn check(picker: &Picker, mut messages: Messages, mut replies: Replies) {
    let checked = match messages.next().await {
        Ok(message) => status_of(&message.unwrap_or_default(), picker.drain.has_begun()),
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
fn status_of(request: &[u8], is_draining: bool) -> Result<Option<u64>, StreamError> {
    let mut service = &b""[..];
    for field in MessageFields::of(request) {
        if let (1, name) = field? {
            service = name.bytes();
        }
    }
    let is_ready = READINESS.iter().any(|name| name.as_bytes() == service);
    Ok(match is_ready {
        true if is_draining => Some(NOT_SERVING),
        true => Some(SERVING),
        false => (service == LIVENESS.as_bytes()).then_some(SERVING),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draining_picker_is_alive_and_not_ready() {
        let status = |service: &str, is_draining| {
            let mut request = MessageWriter::default();
            request.bytes(1, service.as_bytes());
            status_of(&request.finish(), is_draining).unwrap()
        };
        for name in READINESS {
            assert_eq!((status(name, false), status(name, true)), (Some(SERVING), Some(NOT_SERVING)));
        }
        assert_eq!(status_of(&[], false).unwrap(), Some(SERVING), "no name is the whole server");
        assert_eq!(status(LIVENESS, true), Some(SERVING));
        assert_eq!(status("other", false), None);
    }
}
