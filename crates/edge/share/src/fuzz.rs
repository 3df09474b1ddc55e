//! Fuzz target: bytes from clients that connect to the mesh port or write to the Redis server: handshake
//! messages, frames and envelopes.

use bytes::BytesMut;
use warmroute_fuzz::cuttings;

use crate::frame::{BadFrame, FrameReader, FrameWriter, Kind};
use crate::mesh::handshake_message;
use crate::redis::envelope::{EnvelopeHeader, HEADER_BYTES, opener, parse_introduction};
use crate::seal::{Opener, Sealer};

/// Reads the input as each of the three.
pub fn sharing(input: &[u8]) {
    handshake_messages_survive_encoding(input);
    frames_do_not_depend_on_how_the_stream_is_cut(input);
    unsealed_input_never_opens(input);
    envelopes_without_the_secret_never_open(input);
}

fn handshake_messages_survive_encoding(input: &[u8]) {
    let Some((&kind, body)) = input.split_first() else { return };
    let Some(message) = handshake_message::HandshakeMessage::decode(kind, body) else { return };
    let encoded = message.encode();
    assert_eq!(
        handshake_message::HandshakeMessage::decode(encoded[0], &encoded[handshake_message::HEAD_BYTES..]),
        Some(message)
    );
}

type Read = (Vec<(Kind, Vec<u8>)>, Option<BadFrame>);

fn read(mut reader: FrameReader, pieces: &[&[u8]]) -> Read {
    let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match reader.read(&mut buffer) {
                Ok(Some((kind, body))) => frames.push((kind, body.to_vec())),
                Ok(None) => break,
                Err(why) => return (frames, Some(why)),
            }
        }
    }
    (frames, None)
}

/// The input as frames: chunks of bytes, each with a kind.
fn frames_of(input: &[u8]) -> Vec<(Kind, Vec<u8>)> {
    let kinds = [Kind::Alive, Kind::Gossip, Kind::Payload, Kind::Goodbye];
    let frame = |chunk: &[u8]| (kinds[usize::from(chunk[0]) % kinds.len()], chunk[1..].to_vec());
    input.chunks(300).map(frame).collect()
}

fn frames_do_not_depend_on_how_the_stream_is_cut(input: &[u8]) {
    let (frames, mut wire) = (frames_of(input), Vec::new());
    let mut writer = FrameWriter(Sealer::new(b"secret", b"salt", &[b"there"]));
    frames.iter().for_each(|(kind, body)| writer.write(*kind, body, &mut wire));
    for pieces in cuttings(&wire) {
        assert_eq!(read(reader(), &pieces), (frames.clone(), None));
    }
}

fn reader() -> FrameReader {
    FrameReader::new(Opener::new(b"secret", b"salt", &[b"there"]))
}

fn unsealed_input_never_opens(input: &[u8]) {
    assert_eq!(read(reader(), &[input]).0, []);
}

fn envelopes_without_the_secret_never_open(input: &[u8]) {
    _ = parse_introduction(input);
    let Some((head, sealed)) = EnvelopeHeader::parse(input) else { return };
    assert_eq!(head.encode(), input[..HEADER_BYTES], "the header survives encoding");
    assert_eq!(head.open(&opener(b"secret", "prefix", &head.salt), sealed), None);
}

#[cfg(test)]
mod tests {
    #[test]
    fn untrusted_input_is_read_or_rejected() {
        warmroute_fuzz::try_out("sharing", super::sharing);
    }
}
