//! Fuzz target: what reaches a router from whoever can connect to its mesh, or write to its Redis: hellos, frames and letters.

use bytes::BytesMut;
use warmroute_fuzz::cuttings;

use crate::frame::{BadFrame, FrameReader, FrameWriter, Kind};
use crate::mesh::hello;
use crate::redis::letter::{HEAD_BYTES, Head, introduction, opener};
use crate::seal::Opener;

/// The same bytes as each of the three.
pub fn sharing(input: &[u8]) {
    hello_means_the_same_when_it_is_said_again(input);
    frames_are_read_alike_however_they_are_cut(input);
    no_frame_is_opened_that_nobody_sealed(input);
    letter_is_of_nobody(input);
}

fn hello_means_the_same_when_it_is_said_again(input: &[u8]) {
    let Some((&kind, body)) = input.split_first() else { return };
    let Some(message) = hello::Message::decode(kind, body) else { return };
    let said = message.encode();
    assert_eq!(hello::Message::decode(said[0], &said[hello::HEAD_BYTES..]), Some(message));
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

fn frames_are_read_alike_however_they_are_cut(input: &[u8]) {
    let [whole, others @ ..] = cuttings(input).map(|pieces| read(FrameReader::new(None), &pieces));
    others.iter().for_each(|read| assert_eq!(*read, whole));
    let (mut writer, mut wire) = (FrameWriter(None), Vec::new());
    whole.0.iter().for_each(|(kind, body)| writer.write(*kind, body, &mut wire));
    assert!(input.starts_with(&wire), "what was read is what was sent");
}

fn no_frame_is_opened_that_nobody_sealed(input: &[u8]) {
    let opener = Opener::new(b"secret", b"salt", &[b"there"]);
    assert_eq!(read(FrameReader::new(Some(opener)), &[input]).0, []);
}

fn letter_is_of_nobody(input: &[u8]) {
    _ = introduction(input);
    let Some((head, sealed)) = Head::parse(input) else { return };
    assert_eq!(head.encode(), input[..HEAD_BYTES], "what stands in the open is read whole");
    assert_eq!(head.open(&opener(b"secret", "prefix", &head.salt), sealed), None);
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_strangers_say_is_read_or_refused() {
        warmroute_fuzz::try_out("sharing", super::sharing);
    }
}
