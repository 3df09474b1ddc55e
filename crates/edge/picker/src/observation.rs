//! A stream of a filter in observability mode: it reports requests and responses and waits for nothing.
//!
//! The filter stands behind the choosing one and sees its metadata, which names the pick. The stream ends before the
//! response if the client leaves.

use warmroute_gateway::Pick;

use crate::grpc::{Messages, StreamError};
use crate::picker::Picker;
use crate::reply::{LB_NAMESPACE, PICK_ID};
use crate::request::{Event, Metadata, ProcessingRequest};

/// Reads the stream to its end. Returns early if it is not about a pick that waits here.
pub(crate) async fn observe(
    picker: &Picker,
    first: ProcessingRequest,
    messages: &mut Messages,
) -> Result<(), StreamError> {
    let (mut message, mut claimed) = (first, None);
    loop {
        let pick = match claimed.take() {
            Some(pick) => Some(pick),
            None => claim(picker, &message.metadata).await,
        };
        let Some(pick) = pick.and_then(|pick| read(picker, pick, &message)) else { return Ok(()) };
        claimed = Some(pick);
        match messages.next().await? {
            Some(next) => message = ProcessingRequest::decode(&next)?,
            // The client has left: the dropped pick counts as cancelled.
            None => return Ok(()),
        }
    }
}

/// The pick that the metadata names, if it waits here. With several pickers it may wait at another one.
async fn claim(picker: &Picker, metadata: &Metadata) -> Option<Box<Pick>> {
    let named = metadata.strings(LB_NAMESPACE, PICK_ID)?;
    picker.parked.claim(u64::from_str_radix(named.first()?, 16).ok()?).await
}

/// Passes a message to its pick; `None` if the pick has ended.
pub(crate) fn read(picker: &Picker, mut pick: Box<Pick>, message: &ProcessingRequest) -> Option<Box<Pick>> {
    match &message.event {
        Some(Event::ResponseHeaders(head)) => {
            let pick = picker.begin_response(pick, head, &message.metadata)?;
            end_if(pick, head.is_end)
        }
        Some(Event::ResponseBody(part)) => {
            pick.read_chunk(&part.bytes);
            end_if(pick, part.is_end)
        }
        Some(Event::ResponseTrailers) => end_if(pick, true),
        _ => Some(pick),
    }
}

fn end_if(pick: Box<Pick>, is_end: bool) -> Option<Box<Pick>> {
    if is_end {
        pick.end();
        return None;
    }
    Some(pick)
}
