//! Streams: usage, filtering and the end do not depend on how reads split the bytes, and only usage events are removed.

use bytes::Bytes;
use warmroute_fuzz::{Dice, cuttings};
use warmroute_types::Usage;

use crate::answer_state::AnswerState;
use crate::first_token::FirstToken;
use crate::framing::Framing;
use crate::response_content::{ChunkKind, ResponseContent};
use crate::stream_end::StreamEnd;
use crate::usage::{UsageFilter, UsageWatch};

/// The result of reading a stream.
#[derive(Debug, PartialEq)]
struct Seen {
    usage: Option<Usage>,
    tokens: u32,
    passed: Vec<u8>,
    end: [bool; 2],
    said: [bool; 3],
    has_ended: bool,
}

/// A stream of server-sent events.
pub fn stream(input: &[u8]) {
    let expected = passed(input);
    let [whole, others @ ..] = cuttings(input).map(|pieces| Seen::of(&pieces));
    assert_eq!(String::from_utf8_lossy(&whole.passed), String::from_utf8_lossy(&expected));
    others.iter().for_each(|seen| assert_eq!(*seen, whole));
    repeated_events_are_read_alike(input);
    long_events_are_split_alike(input);
    the_first_token_has_one_position(input);
}

/// Each event comes four times with another text in it, and the next event before the last of them. Where a read has whole
/// events, most are recognized and not read in full.
fn repeated_events_are_read_alike(input: &[u8]) {
    let mut dice = Dice::of(input);
    // This takes longer than all else here.
    if !dice.roll().is_multiple_of(4) {
        return;
    }
    const TEXTS: [&[u8]; 8] = [b"a", b"b", b"!", b"\\\"", b"\\n", b"\0data:", b"usage", b" of words"];
    let events = events_of(input);
    let mut stream = Vec::new();
    for (number, event) in events.iter().enumerate() {
        let texts = memchr::memmem::find_iter(event, b":\"").map(|at| at + 2).collect::<Vec<_>>();
        let at = texts.get(dice.roll() as usize % texts.len().max(1)).copied().unwrap_or(event.len());
        for copy in 0..4 {
            if copy == 3 {
                stream.extend_from_slice(events.get(number + 1).unwrap_or(&&b""[..]));
            }
            let text = TEXTS[dice.roll() as usize % TEXTS.len()];
            stream.extend_from_slice(&[&event[..at], text, &event[at..]].concat());
        }
    }
    let by_event = Seen::of(&events_of(&stream));
    let one_by_one = Seen::of(&stream.chunks(1).collect::<Vec<_>>());
    assert_eq!(by_event, one_by_one, "{}", String::from_utf8_lossy(&stream));
}

/// The events of a stream, each with the empty line after it.
fn events_of(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut events = Vec::new();
    while !stream.is_empty() {
        let end = memchr::memmem::find(stream, b"\n\n").map_or(stream.len(), |at| at + 2);
        events.push(&stream[..end]);
        stream = &stream[end..];
    }
    events
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
        let content = ResponseContent::new(Framing::Events, UsageWatch::default()).count_text(true);
        let mut content = content.read_state(Some(AnswerState::new(Framing::Events)));
        let mut filter = UsageFilter::default();
        let mut document = AnswerState::new(Framing::Document);
        let mut passed = Vec::new();
        for piece in pieces {
            document.observe(piece);
            match content.observe(piece) {
                ChunkKind::TextEvents if filter.is_between_events() => passed.extend_from_slice(piece),
                _ => passed.extend_from_slice(&filter.strip(Bytes::copy_from_slice(piece))),
            }
        }
        passed.extend_from_slice(&filter.take_rest().unwrap_or_default());
        let end = content.state.as_ref().and_then(AnswerState::events);
        Seen {
            usage: content.usage.read(),
            tokens: content.usage.streamed_tokens(),
            passed,
            end: [1, 2].map(|answers| end.is_some_and(|end| end.is_complete(answers))),
            said: [StreamEnd::has_final_event, StreamEnd::has_named_error, StreamEnd::has_events]
                .map(|says| end.is_some_and(says)),
            has_ended: document.has_ended(true),
        }
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
