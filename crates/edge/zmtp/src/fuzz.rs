//! Fuzz target: frames decode the same however they are split, and memory stays within a bound of their length.

use bytes::{BufMut, BytesMut};
use warmroute_fuzz::cuttings;

use crate::Options;
use crate::command::Command;
use crate::decoder::{Decoder, Item, put_message};
use crate::endpoint::Endpoint;
use crate::greeting;

const BYTES_MAX: usize = 4_096;
const PARTS_MAX: usize = 4;

/// Frames as a peer may send them. Input that begins like a greeting is read as one too.
pub fn frames(input: &[u8]) {
    if let Some(greeting) = input.first_chunk() {
        let _ = greeting::read(greeting);
    }
    if let Ok(endpoint) = String::from_utf8_lossy(input).parse::<Endpoint>() {
        assert_eq!(
            endpoint.to_string().parse::<Endpoint>().ok(),
            Some(endpoint),
            "it is written as it is read"
        );
    }
    let [whole, others @ ..] = cuttings(input).map(|pieces| read(&pieces));
    others.iter().for_each(|read| assert_eq!(*read, whole));
    whole.0.into_iter().for_each(item_keeps_its_bounds);
}

/// The decoded items, and the error at the end.
fn read(pieces: &[&[u8]]) -> (Vec<Item>, Option<String>) {
    let options =
        Options { message_bytes_max: BYTES_MAX, message_parts_max: PARTS_MAX, ..Options::default() };
    let (mut decoder, mut items) = (Decoder::new(&options), Vec::new());
    for piece in pieces {
        decoder.room().put_slice(piece);
        loop {
            match decoder.next() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(error) => return (items, Some(error.to_string())),
            }
        }
        // One read, and once more where the buffer grows.
        let worth = (128 << 10) + 2 * (piece.len() + BYTES_MAX);
        assert!(decoder.room().capacity() <= worth, "{} bytes are held", decoder.room().capacity());
    }
    (items, None)
}

fn item_keeps_its_bounds(item: Item) {
    match item {
        Item::Command(body) => {
            assert!(body.len() <= BYTES_MAX);
            let _ = Command::read(body);
        }
        Item::Message(parts) => {
            assert!(
                parts.len() <= PARTS_MAX && parts.iter().map(|part| part.len()).sum::<usize>() <= BYTES_MAX
            );
            let mut wire = BytesMut::new();
            put_message(&parts, &mut wire);
            assert_eq!(read(&[&wire]), (vec![Item::Message(parts)], None), "what was read can be sent on");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn frames_decode_the_same_however_they_are_split() {
        warmroute_fuzz::try_out("frames", super::frames);
    }
}
