//! Two pickers, and an observing filter whose streams reach the one that did not choose.

use std::sync::Arc;

use tokio::sync::mpsc;
use warmroute_gateway::{Gateway, PeerTransport, TransportStats};
use warmroute_peers::Envelope;
use warmroute_types::{RouterId, To};

use crate::request::tests::{metadata, write_headers};
use crate::test_client::{Call, Fixture};
use crate::{Config, Feedback};

const WORKER: &str = "http://10.0.0.1:8000";
const POST: [(&str, &str); 2] = [(":method", "POST"), (":path", "/v1/chat/completions")];
const EVENTS: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];
const LAST: &[u8] = b"data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

/// A transport that hands each message to the other router.
struct Wire(mpsc::UnboundedSender<Envelope>);

impl PeerTransport for Wire {
    fn notify(&self) {}

    fn send(&self, envelope: Envelope) {
        _ = self.0.send(envelope);
    }

    fn stats(&self) -> TransportStats {
        TransportStats::default()
    }
}

/// Delivers what `from` sends to `to`.
fn connect(from: (&Arc<Gateway>, RouterId), to: (&Arc<Gateway>, RouterId)) {
    from.0.router().peering().start(from.1, warmroute_peers::Config::default());
    let (sender, mut sent) = mpsc::unbounded_channel::<Envelope>();
    from.0.set_peer_transport(Arc::new(Wire(sender)));
    let (receiver, me, sender) = (Arc::clone(to.0), to.1, from.1);
    tokio::spawn(async move {
        while let Some(envelope) = sent.recv().await {
            assert_eq!(envelope.to, To::One(me), "a report is for the picker that chose");
            let received = receiver.router().peering().receive_from(sender, &envelope.bytes, receiver.now());
            received.unwrap().reports.iter().for_each(|report| receiver.receive_report(report));
        }
    });
}

/// The picker that chooses, and the one that observes.
async fn two_pickers() -> (Fixture, Fixture) {
    let config = Config { feedback: Feedback::Observer, ..Config::default() };
    let (chooser, observer) =
        (Fixture::start(&[WORKER], config).await, Fixture::start(&[WORKER], config).await);
    let (one, two) = ((&chooser.gateway, RouterId(1)), (&observer.gateway, RouterId(2)));
    connect(one, two);
    connect(two, one);
    (chooser, observer)
}

/// A stream is chosen at one picker and observed at the other. Returns the observing stream, and the metadata that names
/// the pick.
async fn observed(chooser: &Fixture, observer: &Fixture) -> (Call, Vec<u8>) {
    let mut call = chooser.proxy().await.call().await;
    call.request_headers(Some((2, 0)), &POST, false);
    call.reply().await;
    call.request_body(br#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#, true);
    let name = call.reply().await.all(&[8, 1, 2, 5, 1, 2, 3]).pop().unwrap();
    assert!(name.starts_with(b"0000000000000001-"), "the name has the chooser's id: {name:?}");
    assert_eq!(call.status().await, 0);
    assert_eq!(chooser.in_flight(), 1);
    let named = metadata("envoy.lb", "x-warmroute-pick", |value| value.bytes(3, &name));
    let mut stream = observer.proxy().await.call().await;
    stream.send(|message| {
        message.message(2, |headers| write_headers(headers, &POST));
        message.bytes(8, &named);
        message.flag(10, true);
    });
    (stream, named)
}

fn head(stream: &mut Call, headers: &[(&str, &str)]) {
    stream.send(|message| message.message(3, |head| write_headers(head, headers)));
}

#[tokio::test]
async fn a_response_that_another_picker_sees_ends_the_booking_where_it_was_made() {
    let (chooser, observer) = two_pickers().await;
    let (mut stream, _) = observed(&chooser, &observer).await;
    head(&mut stream, &EVENTS);
    assert!(chooser.workers()[0].load.prefill_tokens > 0);
    stream.response_body(b"data: {\"choices\":[]}\n\n", false);
    chooser.wait_for("the first token ends the prefill", |load| load.prefill_tokens == 0).await;
    assert_eq!(chooser.in_flight(), 1);
    stream.response_body(LAST, true);
    assert_eq!(stream.status().await, 0);
    chooser.wait_in_flight(0).await;
    let outcomes = chooser.outcomes();
    assert!(outcomes.contains("outcome=\"ok\"} 1"), "{outcomes}");
    assert!(!observer.outcomes().contains("} 1"), "the other picker has routed nothing");
}

#[tokio::test]
async fn a_client_that_leaves_and_a_failure_reach_the_picker_that_chose() {
    let (chooser, observer) = two_pickers().await;
    let (mut stream, _) = observed(&chooser, &observer).await;
    head(&mut stream, &EVENTS);
    stream.response_body(b"data: {\"choices\":[]}\n\n", false);
    chooser.wait_for("the first token ends the prefill", |load| load.prefill_tokens == 0).await;
    stream.reset();
    chooser.wait_in_flight(0).await;
    assert!(chooser.outcomes().contains("outcome=\"cancelled\"} 1"), "{}", chooser.outcomes());
    let (mut stream, _) = observed(&chooser, &observer).await;
    head(&mut stream, &[(":status", "503"), ("retry-after", "3")]);
    stream.response_body(b"busy", true);
    chooser.wait_in_flight(0).await;
    assert!(chooser.outcomes().contains("outcome=\"server_error\"} 1"), "{}", chooser.outcomes());
}

#[tokio::test]
async fn a_pick_that_has_ended_or_never_was_is_ignored() {
    let (chooser, observer) = two_pickers().await;
    let (mut stream, named) = observed(&chooser, &observer).await;
    head(&mut stream, &EVENTS);
    stream.response_body(LAST, true);
    chooser.wait_in_flight(0).await;
    let unknown = metadata("envoy.lb", "x-warmroute-pick", |value| value.bytes(3, b"0000000000000001-77"));
    for named in [named, unknown] {
        let mut stream = observer.proxy().await.call().await;
        stream.send(|message| {
            message.message(2, |headers| write_headers(headers, &POST));
            message.bytes(8, &named);
            message.flag(10, true);
        });
        head(&mut stream, &EVENTS);
        stream.response_body(LAST, true);
        assert_eq!(stream.status().await, 0);
    }
    // The chooser is well, and counts each response once.
    let (mut stream, _) = observed(&chooser, &observer).await;
    head(&mut stream, &EVENTS);
    stream.response_body(LAST, true);
    chooser.wait_in_flight(0).await;
    assert!(chooser.outcomes().contains("outcome=\"ok\"} 2"), "{}", chooser.outcomes());
}
