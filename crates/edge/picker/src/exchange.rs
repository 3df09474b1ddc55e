//! The protocol of one request: reads what Envoy sends, chooses a worker, and answers in the way of the filter's mode.
//!
//! | the filter sends | the picker answers |
//! |---|---|
//! | `FULL_DUPLEX_STREAMED` | nothing until the body is there; then the choice, and the body back |
//! | `BUFFERED` | the headers at once; then the choice, in reply to the body, which the filter keeps |
//! | no body, `STREAMED`, `NONE` | the choice, in reply to the headers |
//!
//! A filter that streams a body forwards the headers first, so the choice cannot wait for the prompt.
//!
//! Messages with a part of a request's body count as memory of that request, all others as memory of the stream
//! ([`Messages`]).
//!
//! The picker then leaves, or reads the response in the same stream. A refusal is an immediate response.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::time::timeout_at;
use warmroute_gateway::{BodyNeed, Pick, PickHead, PickIntake, Refusal, ResponseSight, WorkerGroup};

use crate::Feedback;
use crate::grpc::{Messages, Replies, Status, StreamError};
use crate::observation;
use crate::parked::{self, PickName, Promise};
use crate::picker::{Listening, Picker, without_destination};
use crate::reply::{self, Phase, Route};
use crate::request::{BodyMode, BodyPart, Event, Head, Metadata, ProcessingRequest, ProtocolConfig};

/// The metadata that restricts the choice.
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// The request header of conformance tests that restricts the choice.
const TEST_SELECTION: &str = "test-epp-endpoint-selection";

/// Bytes of a body in one message. Envoy's API recommends at most 64 KiB.
const PART_BYTES_MAX: usize = 62 << 10;

/// Bytes of a message beside the body that it carries: headers, metadata and attributes.
pub(crate) const BYTES_BESIDE_BODY: usize = 1 << 20;

/// How the body of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// With its last part.
    Body,
    /// With trailers, which follow the last part.
    Trailers,
}

/// A request's choice, until Envoy has it.
enum Choice {
    Picked(Box<Pick>),
    Refused(Refusal),
    /// The client has left.
    Left,
}

/// Why there is no next part of a request's body.
enum NoPart {
    /// There is no room for it, or it came too slowly.
    Refused(Refusal),
    Failed(StreamError),
}

impl From<StreamError> for NoPart {
    fn from(error: StreamError) -> NoPart {
        NoPart::Failed(error)
    }
}

/// One stream.
pub(crate) struct Exchange {
    picker: Arc<Picker>,
    /// The address of the proxy.
    proxy: IpAddr,
    /// The workers of the listener's pool; `None`: all workers.
    group: Option<Arc<WorkerGroup>>,
    messages: Messages,
    replies: Replies,
    protocol: ProtocolConfig,
    /// The pick's number, if an observer may claim it.
    promise: Option<Promise>,
}

impl Exchange {
    pub(crate) fn new(
        listening: &Listening,
        proxy: IpAddr,
        messages: Messages,
        replies: Replies,
    ) -> Exchange {
        let Listening { picker, group } = listening.clone();
        let protocol = ProtocolConfig::default();
        Exchange { picker, proxy, group, messages, replies, protocol, promise: None }
    }

    /// Runs the stream to its end.
    pub(crate) async fn run(mut self) {
        match self.process().await {
            Ok(()) => self.replies.finish(Status::Ok, ""),
            Err(StreamError::NoMemory(refusal)) => {
                // Whether the proxy takes the refusal or has gone, the stream ends.
                _ = self.refuse(&refusal.response(), refusal.code()).await;
                self.replies.finish(Status::Ok, "");
            }
            Err(error) => {
                tracing::debug!(%error, "stream of a proxy ended with an error");
                self.replies.fail(&error);
            }
        }
    }

    async fn process(&mut self) -> Result<(), StreamError> {
        let Some(first) = self.messages.first().await? else { return Ok(()) };
        let first = ProcessingRequest::decode(&first)?;
        let body_bytes_max = self.picker.gateway.body_bytes_max();
        self.messages.allow_bytes(body_bytes_max.saturating_add(BYTES_BESIDE_BODY));
        if first.is_observing {
            return observation::observe(&self.picker, self.proxy, first, &mut self.messages).await;
        }
        self.protocol = first.protocol.unwrap_or_default();
        let Some(Event::RequestHeaders(head)) = first.event else {
            return self.refuse_without_headers().await;
        };
        let Some(pick) = self.choose(head, &first.metadata).await? else { return Ok(()) };
        match (self.promise.take(), self.sight()) {
            (Some(promise), _) => promise.park(pick),
            (None, ResponseSight::Unseen) => parked::hold(pick),
            (None, ResponseSight::Seen) => self.follow(pick).await?,
        }
        Ok(())
    }

    /// Whether the response will be seen: in this stream, or by an observer.
    fn sight(&self) -> ResponseSight {
        match self.picker.config.feedback {
            Feedback::Off => ResponseSight::Unseen,
            Feedback::Observer => ResponseSight::Seen,
            Feedback::Stream if self.protocol.response_body == BodyMode::None => ResponseSight::Unseen,
            Feedback::Stream => ResponseSight::Seen,
        }
    }

    /// Chooses a worker and sends the choice; `None` if there is none or the client has left.
    async fn choose(&mut self, head: Head, metadata: &Metadata) -> Result<Option<Box<Pick>>, StreamError> {
        let has_body = !head.is_end;
        let selected = head.headers.get(TEST_SELECTION).filter(|_| self.picker.obeys_test_headers());
        let selected = selected.map(|list| String::from_utf8_lossy(list.as_bytes()).into_owned());
        let selected = selected.map(|list| list.split(',').map(|entry| entry.trim().to_owned()).collect());
        let head = PickHead {
            method: head.method,
            path: head.path,
            headers: without_destination(head.headers),
            has_body,
            group: self.group.clone(),
            allows_any_path: self.picker.obeys_test_headers(),
            allowed: selected.or_else(|| metadata.strings(SUBSET_NAMESPACE, SUBSET)),
        };
        let mut intake = self.picker.gateway.begin_pick(head, &self.picker.drain);
        if let Err(refusal) = intake.check().await {
            return self.refuse(&refusal.response(), refusal.code()).await;
        }
        match self.protocol.request_body {
            BodyMode::FullDuplex if has_body => self.choose_in_duplex(intake).await,
            BodyMode::Buffered | BodyMode::BufferedPartial if has_body => self.choose_buffered(intake).await,
            BodyMode::Streamed if has_body => self.choose_at_once(intake).await,
            _ => {
                let choice = self.pick(intake).await?;
                self.reply_with(Phase::RequestHeaders, choice).await
            }
        }
    }

    /// Reads the body, as far as it is needed, and sends it back after the choice.
    async fn choose_in_duplex(&mut self, mut intake: PickIntake) -> Result<Option<Box<Pick>>, StreamError> {
        let mut end = None;
        while end.is_none() {
            let read = match timeout_at(intake.deadline(), self.read_part(&mut intake)).await {
                Ok(read) => read,
                Err(_) => Err(NoPart::Refused(intake.slow_body())),
            };
            end = match read {
                Ok(Some(end)) => end,
                Ok(None) => return Ok(None),
                Err(NoPart::Refused(refusal)) => {
                    return self.refuse(&refusal.response(), refusal.code()).await;
                }
                Err(NoPart::Failed(error)) => return Err(error),
            };
            if intake.need() == BodyNeed::Start {
                break;
            }
        }
        let choice = self.pick(intake).await?;
        let Some(mut pick) = self.reply_with(Phase::RequestHeaders, choice).await? else { return Ok(None) };
        let pieces: Vec<Bytes> = pick.body().cloned().collect();
        self.send_body(Phase::RequestBody, &pieces, end == Some(BodyEnd::Body)).await?;
        drop(pieces);
        pick.release_body();
        while end.is_none() {
            let Some((part, part_end)) = self.next_part().await? else { return Ok(None) };
            end = part_end;
            self.send_body(Phase::RequestBody, &[part], end == Some(BodyEnd::Body)).await?;
        }
        if end == Some(BodyEnd::Trailers) {
            self.send(&reply::proceed(Phase::RequestTrailers)).await?;
        }
        Ok(Some(pick))
    }

    /// Reads the next part of the request's body into the intake, and returns how the body ends if it does; `None` if the
    /// client has left. Memory is counted as bytes arrive.
    async fn read_part(&mut self, intake: &mut PickIntake) -> Result<Option<Option<BodyEnd>>, NoPart> {
        let mut reserve = |bytes: usize| intake.reserve(bytes).map_err(NoPart::Refused);
        let (part, end) = loop {
            let message = self.messages.next_counted(&mut reserve).await?;
            let Some(message) = message else { return Ok(None) };
            if let Some(part) = part_of(&message)? {
                break part;
            }
        };
        intake.push(part).map_err(NoPart::Refused)?;
        Ok(Some(end))
    }

    /// The next part of the request's body, and how the body ends if it does; `None` if the client has left.
    async fn next_part(&mut self) -> Result<Option<(Bytes, Option<BodyEnd>)>, StreamError> {
        while let Some(message) = self.messages.next().await? {
            if let Some(part) = part_of(&message)? {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    /// Chooses by the headers, and lets the body pass. The stream ends after the body: Envoy 1.40 can lose parts of a body that
    /// passes while it ends.
    async fn choose_at_once(&mut self, intake: PickIntake) -> Result<Option<Box<Pick>>, StreamError> {
        let choice = self.pick(intake).await?;
        let Some(pick) = self.reply_with(Phase::RequestHeaders, choice).await? else { return Ok(None) };
        loop {
            let Some((_, end)) = self.next_part().await? else { return Ok(None) };
            let phase = match end {
                Some(BodyEnd::Trailers) => Phase::RequestTrailers,
                _ => Phase::RequestBody,
            };
            self.send(&reply::proceed(phase)).await?;
            if end.is_some() {
                return Ok(Some(pick));
            }
        }
    }

    /// Lets the headers pass, and answers the body with the choice.
    async fn choose_buffered(&mut self, mut intake: PickIntake) -> Result<Option<Box<Pick>>, StreamError> {
        self.send(&reply::proceed(Phase::RequestHeaders)).await?;
        let end = match self.read_part(&mut intake).await {
            Ok(Some(end)) => end,
            Ok(None) => return Ok(None),
            Err(NoPart::Refused(refusal)) => return self.refuse(&refusal.response(), refusal.code()).await,
            Err(NoPart::Failed(error)) => return Err(error),
        };
        let is_partial = self.protocol.request_body == BodyMode::BufferedPartial && end.is_none();
        let choice = match self.pick(intake).await? {
            Choice::Refused(refusal) if is_partial && refusal.code() == "invalid_json" => {
                let why = "The proxy sent only a part of the request's body: it is larger than the buffer of \
                           its BUFFERED_PARTIAL mode. Set request_body_mode to FULL_DUPLEX_STREAMED";
                return self.refuse(&misconfigured(StatusCode::PAYLOAD_TOO_LARGE, why), "partial_body").await;
            }
            choice => choice,
        };
        let phase = match end {
            Some(BodyEnd::Trailers) => Phase::RequestTrailers,
            _ => Phase::RequestBody,
        };
        let picked = self.reply_with(phase, choice).await?;
        Ok(picked.map(|mut pick| {
            pick.release_body();
            pick
        }))
    }

    /// Asks the gateway for a worker. A client that leaves meanwhile leaves the admission queue too, also in the middle of
    /// an upload.
    async fn pick(&mut self, intake: PickIntake) -> Result<Choice, StreamError> {
        let picking = intake.pick(self.sight());
        tokio::select! {
            biased;
            picked = picking => Ok(match picked {
                Ok(pick) => Choice::Picked(pick),
                Err(refusal) => Choice::Refused(refusal),
            }),
            ended = self.messages.wait_end() => ended.map(|()| Choice::Left),
        }
    }

    /// Sends the choice in reply to a part of the request.
    async fn reply_with(&mut self, phase: Phase, choice: Choice) -> Result<Option<Box<Pick>>, StreamError> {
        let pick = match choice {
            Choice::Picked(pick) => pick,
            Choice::Refused(refusal) => return self.refuse(&refusal.response(), refusal.code()).await,
            Choice::Left => return Ok(None),
        };
        if self.picker.config.feedback == Feedback::Observer {
            self.promise = Some(self.picker.parked.promise());
        }
        let endpoints = pick.endpoints(self.picker.config.fallbacks);
        let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        let route = Route {
            destination: endpoints.join(","),
            headers: pick.header_changes(),
            pick_id: self.promise.as_ref().map(|promise| self.name_of(promise)),
        };
        let body = (phase == Phase::RequestBody && pick.is_body_changed())
            .then(|| pick.body().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>());
        let reply = reply::routed(phase, &route, body.as_deref());
        self.send(&reply).await?;
        Ok(Some(pick))
    }

    /// The name by which an observer can find the pick from any picker.
    fn name_of(&self, promise: &Promise) -> String {
        PickName { router: self.picker.router_id(), number: promise.number() }.to_string()
    }

    /// Answers the client in place of a worker.
    async fn refuse(
        &mut self,
        response: &Response<Bytes>,
        code: &str,
    ) -> Result<Option<Box<Pick>>, StreamError> {
        self.send(&reply::immediate(response, code)).await?;
        Ok(None)
    }

    /// A filter that does not send request headers cannot be answered with a choice.
    async fn refuse_without_headers(&mut self) -> Result<(), StreamError> {
        let why = "The endpoint picker got no request headers. Set request_header_mode to SEND in the ext_proc filter";
        self.refuse(&misconfigured(StatusCode::INTERNAL_SERVER_ERROR, why), "no_request_headers").await?;
        Ok(())
    }

    /// Reads the response in this stream, and lets it pass to its end, also if it is not the chosen worker's: a filter that
    /// streams has sent parts that it does not keep, and would lose them with the stream.
    async fn follow(&mut self, pick: Box<Pick>) -> Result<(), StreamError> {
        let mut pick = Some(pick);
        while let Some(message) = self.next().await? {
            match &message.event {
                Some(Event::ResponseHeaders(_)) => {
                    let served = self.picker.served(&message.metadata);
                    let served = served.filter(|_| self.picker.obeys_test_headers());
                    self.send(&reply::response_headers(served.as_deref())).await?;
                }
                Some(Event::ResponseTrailers) => self.send(&reply::proceed(Phase::ResponseTrailers)).await?,
                Some(Event::RequestTrailers) => self.send(&reply::proceed(Phase::RequestTrailers)).await?,
                Some(Event::ResponseBody(part)) => self.pass(Phase::ResponseBody, part).await?,
                // In other modes this is a second end of a body that has been sent back.
                Some(Event::RequestBody(part)) if self.protocol.request_body == BodyMode::Streamed => {
                    self.pass(Phase::RequestBody, part).await?;
                }
                _ => {}
            }
            pick = pick.and_then(|pick| observation::read(&self.picker, self.proxy, pick, &message));
            if message.ends_response() {
                return Ok(());
            }
        }
        // The client has left: the dropped pick counts as cancelled.
        Ok(())
    }

    /// Lets a part of a body pass, in the way of its mode.
    async fn pass(&mut self, phase: Phase, part: &BodyPart) -> Result<(), StreamError> {
        let mode = match phase {
            Phase::RequestBody => self.protocol.request_body,
            _ => self.protocol.response_body,
        };
        match mode {
            BodyMode::FullDuplex => {
                self.send_body(phase, std::slice::from_ref(&part.bytes), part.is_end).await
            }
            _ => self.send(&reply::proceed(phase)).await,
        }
    }

    /// Sends a body back, in messages of a bounded size. `is_end`: nothing follows the last one.
    async fn send_body(&mut self, phase: Phase, pieces: &[Bytes], is_end: bool) -> Result<(), StreamError> {
        let mut rest: usize = pieces.iter().map(Bytes::len).sum();
        if rest == 0 && is_end {
            return self.replies.send(&reply::body_part(phase, 0, true), &Bytes::new()).await;
        }
        for piece in pieces {
            let mut piece = piece.clone();
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(PART_BYTES_MAX));
                rest -= part.len();
                let head = reply::body_part(phase, part.len(), is_end && rest == 0);
                self.replies.send(&head, &part).await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self, reply: &[u8]) -> Result<(), StreamError> {
        self.replies.send(reply, &Bytes::new()).await
    }

    async fn next(&mut self) -> Result<Option<ProcessingRequest>, StreamError> {
        let message = self.messages.next().await?;
        Ok(message.map(|message| ProcessingRequest::decode(&message)).transpose()?)
    }
}

/// The part of a request's body in a message, and how the body ends if it does.
fn part_of(message: &Bytes) -> Result<Option<(Bytes, Option<BodyEnd>)>, StreamError> {
    Ok(match ProcessingRequest::decode(message)?.event {
        Some(Event::RequestBody(BodyPart { bytes, is_end })) => {
            Some((bytes, is_end.then_some(BodyEnd::Body)))
        }
        Some(Event::RequestTrailers) => Some((Bytes::new(), Some(BodyEnd::Trailers))),
        _ => None,
    })
}

/// A response that says which setting of the proxy is wrong.
fn misconfigured(status: StatusCode, why: &'static str) -> Response<Bytes> {
    tracing::warn!(why, "the proxy's configuration does not fit");
    let mut response = Response::new(Bytes::from_static(why.as_bytes()));
    *response.status_mut() = status;
    response
}
