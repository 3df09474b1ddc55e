//! A stream of a filter in observability mode: it reports requests and responses and waits for nothing.
//!
//! The filter stands behind the choosing one and sees its metadata, which names the pick. The stream ends before the
//! response if the client leaves. With several pickers the stream may reach another one than the choosing stream did; the
//! response is then reported to the picker that chose (`peer_reports`).

use std::net::IpAddr;

use http::StatusCode;
use tokio::time::{MissedTickBehavior, interval};
use warmroute_gateway::Pick;

use crate::grpc::{Messages, StreamError};
use crate::peer_reports::{REPORT_EVERY, RemotePick};
use crate::picker::Picker;
use crate::request::{BodyPart, Event, Head, Metadata, ProcessingRequest};

/// A pick that an observer has named.
enum Observed {
    /// It waited here.
    Own(Box<Pick>),
    /// It waits at another picker.
    Remote(Box<RemotePick>),
}

/// Reads the stream to its end. Returns early if it is not about a pick that is known.
pub(crate) async fn observe(
    picker: &Picker,
    proxy: IpAddr,
    first: ProcessingRequest,
    messages: &mut Messages,
) -> Result<(), StreamError> {
    let (mut message, mut claimed) = (first, None);
    let mut still_open = interval(REPORT_EVERY);
    still_open.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let pick = match claimed.take() {
            Some(pick) => Some(pick),
            None => claim(picker, &message.metadata).await,
        };
        let Some(pick) = pick.and_then(|pick| pick.read(picker, proxy, &message)) else { return Ok(()) };
        let pick = claimed.insert(pick);
        let next = loop {
            tokio::select! {
                next = messages.next() => break next?,
                _ = still_open.tick() => pick.keep_open(),
            }
        };
        match next {
            Some(next) => message = ProcessingRequest::decode(&next)?,
            // The client has left: the dropped pick counts as cancelled.
            None => return Ok(()),
        }
    }
}

/// The pick that the metadata names.
async fn claim(picker: &Picker, metadata: &Metadata) -> Option<Observed> {
    let named = picker.pick_name(metadata)?;
    match named.router {
        Some(router) if Some(router) != picker.router_id() => {
            let remote = RemotePick::claim(&picker.gateway, router, named.number);
            Some(Observed::Remote(Box::new(remote)))
        }
        _ => picker.parked.claim(named.number).await.map(Observed::Own),
    }
}

impl Observed {
    fn keep_open(&self) {
        if let Observed::Remote(remote) = self {
            remote.keep_open();
        }
    }

    /// Passes a message to the pick; `None` if the pick has ended.
    fn read(self, picker: &Picker, proxy: IpAddr, message: &ProcessingRequest) -> Option<Observed> {
        match self {
            Observed::Own(pick) => read(picker, proxy, pick, message).map(Observed::Own),
            Observed::Remote(pick) => read_remote(picker, proxy, pick, message).map(Observed::Remote),
        }
    }
}

/// Passes a message to a pick that waited here; `None` if the pick has ended.
pub(crate) fn read(
    picker: &Picker,
    proxy: IpAddr,
    mut pick: Box<Pick>,
    message: &ProcessingRequest,
) -> Option<Box<Pick>> {
    match &message.event {
        Some(Event::ResponseHeaders(head)) => {
            let pick = picker.begin_response(proxy, pick, head, &message.metadata)?;
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

/// Passes a message to a pick that waits at another picker; `None` if the pick has ended.
fn read_remote(
    picker: &Picker,
    proxy: IpAddr,
    mut pick: Box<RemotePick>,
    message: &ProcessingRequest,
) -> Option<Box<RemotePick>> {
    let is_end = match &message.event {
        Some(Event::ResponseHeaders(Head { status, headers, is_end, .. })) => {
            if !picker.is_of_chosen(proxy, &message.metadata) {
                pick.end_elsewhere();
                return None;
            }
            pick.read(|reader| Some(reader.begin(status.unwrap_or(StatusCode::OK), headers)));
            *is_end
        }
        Some(Event::ResponseBody(BodyPart { bytes, is_end })) => {
            pick.read(|reader| reader.read_chunk(bytes));
            *is_end
        }
        Some(Event::ResponseTrailers) => true,
        _ => false,
    };
    if is_end {
        pick.end();
        return None;
    }
    Some(pick)
}
