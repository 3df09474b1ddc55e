//! Streams: usage, filtering and the end do not depend on how reads split the bytes, and only usage events are removed.

use bytes::Bytes;
use warmroute_fuzz::{Dice, cuttings};
use warmroute_types::Usage;

use crate::answer_state::AnswerState;
use crate::first_token::FirstToken;
use crate::framing::Framing;
use crate::stream_end::StreamEnd;
use crate::usage::{UsageFilter, UsageWatch};

/// The result of reading a stream.
#[derive(Debug, PartialEq)]
struct Seen {
    usage: Option<Usage>,
    tokens: u32,
    passed: Vec<u8>,
    is_complete: bool,
    has_ended: bool,
}

/// A stream of server-sent events.
pub fn stream(input: &[u8]) {
    let expected = passed(input);
    let [whole, others @ ..] = cuttings(input).map(|pieces| Seen::of(&pieces));
    assert_eq!(String::from_utf8_lossy(&whole.passed), String::from_utf8_lossy(&expected));
    others.iter().for_each(|seen| assert_eq!(*seen, whole));
    long_events_are_split_alike(input);
    the_first_token_has_one_position(input);
}

/// Few inputs reach the length limits, so some are made longer. Doing that for all would take too long.
fn long_events_are_split_alike(input: &[u8]) {
    if Dice::of(input).roll().is_multiple_of(16) {
        let long = [input, &b"x".repeat(70_000), input, b"\n\n", input].concat();
        let [whole, _, other, _] = cuttings(&long);
        assert_eq!(Seen::of(&other), Seen::of(&whole));
    }
}

impl Seen {
    fn of(pieces: &[&[u8]]) -> Seen {
        let (mut watch, mut events) = (UsageWatch::default(), UsageFilter::default());
        let (mut end, mut document) = (StreamEnd::default(), AnswerState::new(Framing::Document));
        let mut passed = Vec::new();
        for piece in pieces {
            watch.observe(piece);
            watch.observe_text(piece);
            end.observe(piece);
            document.observe(piece);
            passed.extend_from_slice(&events.strip(Bytes::copy_from_slice(piece)));
        }
        passed.extend_from_slice(&events.take_rest().unwrap_or_default());
        let (is_complete, has_ended) = (end.is_complete(2), document.has_ended(true));
        Seen { usage: watch.read(), tokens: watch.streamed_tokens(), passed, is_complete, has_ended }
    }
}

/// What the client must see, computed in the simplest way: an event is all lines up to an empty one.
fn passed(stream: &[u8]) -> Vec<u8> {
    let (mut passed, mut event) = (Vec::new(), Vec::new());
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        event.extend_from_slice(line);
        if matches!(line, b"\n" | b"\r\n") {
            let event = std::mem::take(&mut event);
            let says = |words: [&str; 2]| {
                words.iter().any(|word| event.windows(word.len()).any(|part| part == word.as_bytes()))
            };
            let is_ours =
                says(["\"choices\":[]", "\"choices\": []"]) && says(["\"usage\":{", "\"usage\": {"]);
            passed.extend_from_slice(if is_ours { b"" } else { &event });
        }
    }
    [passed, event].concat()
}

/// The read that detects the first token is the one that contains it.
fn the_first_token_has_one_position(input: &[u8]) {
    let [_, one_by_one, others @ ..] = cuttings(input);
    let mut first_token = FirstToken::default();
    let at = one_by_one.iter().position(|byte| first_token.is_in(byte));
    for pieces in others.iter().chain([&vec![input]]) {
        let (mut first_token, mut end) = (FirstToken::default(), 0);
        let seen = pieces.iter().find(|piece| {
            end += piece.len();
            first_token.is_in(piece)
        });
        assert_eq!(seen.is_some(), at.is_some());
        if let (Some(piece), Some(at)) = (seen, at) {
            assert!((end - piece.len()..end).contains(&at), "{at} is not in the read that ends at {end}");
        }
    }
}
