//! Frames on a mesh connection: length, kind and body, sealed.
//!
//! ```text
//! ┌────────────┬────────────────────────────┐
//! │ length u32 │ kind u8 │ body │ tag 16    │   the length counts what follows it; kind and body are sealed together with it
//! └────────────┴────────────────────────────┘
//! ```
//!
//! Frames are numbered by their order alone. A frame that was repeated, omitted or taken from another connection does not open,
//! and ends the connection. Pure: bytes in, frames out.

use bytes::{Buf, BytesMut};

use crate::MAX_MESSAGE_BYTES;
use crate::seal::{Opener, Sealer, TAG_BYTES};

const LENGTH_BYTES: usize = 4;

/// Kind, body and tag.
const BODY_BYTES_MAX: usize = 1 + MAX_MESSAGE_BYTES + TAG_BYTES;

/// Purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Heartbeat.
    Alive = 0,
    /// Membership gossip.
    Gossip = 1,
    /// A message of the sharing router.
    Payload = 2,
    /// The last frame of a router that leaves.
    Goodbye = 3,
}

/// Errors that end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFrame {
    #[error("it sent a frame of {0} bytes, which is too large")]
    TooLarge(usize),
    #[error("it sent a frame that was forged, repeated or damaged")]
    Forged,
    #[error("it sent a frame of an unknown kind")]
    Malformed,
}

/// Writes the frames of one direction.
#[derive(Debug)]
pub(crate) struct FrameWriter(pub Sealer);

/// Reads the frames of one direction.
#[derive(Debug)]
pub(crate) struct FrameReader {
    opener: Opener,
    next: u64,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Alive, Kind::Gossip, Kind::Payload, Kind::Goodbye].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl FrameWriter {
    /// Appends a frame to the buffer.
    pub(crate) fn write(&mut self, kind: Kind, body: &[u8], buffer: &mut Vec<u8>) {
        let length = (1 + body.len() + TAG_BYTES) as u32;
        buffer.extend_from_slice(&length.to_be_bytes());
        let start = buffer.len();
        buffer.push(kind as u8);
        buffer.extend_from_slice(body);
        self.0.seal(&length.to_be_bytes(), buffer, start);
    }
}

impl FrameReader {
    pub(crate) fn new(opener: Opener) -> FrameReader {
        FrameReader { opener, next: 0 }
    }

    /// Takes the next frame out of the buffer; `None` while it is incomplete. After an error the connection
    /// cannot be read any more.
    pub(crate) fn read(&mut self, buffer: &mut BytesMut) -> Result<Option<(Kind, BytesMut)>, BadFrame> {
        let Some(length) = buffer.first_chunk::<LENGTH_BYTES>().copied() else { return Ok(None) };
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > BODY_BYTES_MAX {
            return Err(BadFrame::TooLarge(bytes));
        }
        if buffer.len() < LENGTH_BYTES + bytes {
            return Ok(None);
        }
        buffer.advance(LENGTH_BYTES);
        let mut body = buffer.split_to(bytes);
        let opened = self.opener.open(self.next, &length, &mut body).ok_or(BadFrame::Forged)?.len();
        body.truncate(opened);
        self.next += 1;
        let kind = body.first().copied().and_then(Kind::from_byte).ok_or(BadFrame::Malformed)?;
        body.advance(1);
        Ok(Some((kind, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (FrameWriter, FrameReader) {
        let sealer = Sealer::new(b"secret", b"salt", &[b"there"]);
        let opener = Opener::new(b"secret", b"salt", &[b"there"]);
        (FrameWriter(sealer), FrameReader::new(opener))
    }

    fn all(reader: &mut FrameReader, buffer: &mut BytesMut) -> Result<Vec<(Kind, Vec<u8>)>, BadFrame> {
        let mut frames = Vec::new();
        while let Some((kind, body)) = reader.read(buffer)? {
            frames.push((kind, body.to_vec()));
        }
        Ok(frames)
    }

    fn frames() -> impl Strategy<Value = Vec<(Kind, Vec<u8>)>> {
        let kind = prop::sample::select(vec![Kind::Alive, Kind::Gossip, Kind::Payload, Kind::Goodbye]);
        prop::collection::vec((kind, prop::collection::vec(any::<u8>(), 0..300)), 1..8)
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut_of_the_stream(frames in frames(), cut in 1..64_usize) {
            let (mut writer, mut reader) = pair();
            let mut wire = Vec::new();
            frames.iter().for_each(|(kind, body)| writer.write(*kind, body, &mut wire));
            let mut buffer = BytesMut::new();
            let mut read = Vec::new();
            for piece in wire.chunks(cut) {
                buffer.extend_from_slice(piece);
                read.extend(all(&mut reader, &mut buffer).unwrap());
            }
            prop_assert_eq!(read, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn garbage_is_rejected_and_never_panics(garbage in prop::collection::vec(any::<u8>(), 0..400)) {
            let (_, mut reader) = pair();
            let read = all(&mut reader, &mut BytesMut::from(&garbage[..]));
            prop_assert!(read.is_err() || read == Ok(Vec::new()));
        }

        /// After a frame that is omitted, repeated or changed, no later frame is read.
        #[test]
        fn no_frame_can_be_omitted_repeated_or_changed(frames in frames(), place in any::<usize>(), how in 0..3_u8) {
            let (mut writer, mut reader) = pair();
            let mut wires: Vec<Vec<u8>> = Vec::new();
            for (kind, body) in &frames {
                let mut wire = Vec::new();
                writer.write(*kind, body, &mut wire);
                wires.push(wire);
            }
            let place = place % wires.len();
            match how {
                0 => wires.insert(place, wires[place].clone()),
                1 => wires[place][LENGTH_BYTES] ^= 0x10,
                _ => _ = wires.remove(place),
            }
            let good = if how == 0 { place + 1 } else { place };
            let mut buffer = BytesMut::from(&wires.concat()[..]);
            for frame in &frames[..good] {
                let (kind, body) = reader.read(&mut buffer).unwrap().unwrap();
                prop_assert_eq!(&(kind, body.to_vec()), frame);
            }
            if !buffer.is_empty() {
                prop_assert_eq!(reader.read(&mut buffer).map(|_| ()), Err(BadFrame::Forged));
            }
        }
    }

    #[test]
    fn an_oversized_frame_is_rejected_by_its_length() {
        let (_, mut reader) = pair();
        let length = (BODY_BYTES_MAX + 1) as u32;
        let read = reader.read(&mut BytesMut::from(&length.to_be_bytes()[..]));
        assert_eq!(read, Err(BadFrame::TooLarge(BODY_BYTES_MAX + 1)));
    }

    #[test]
    fn the_largest_message_fits_into_a_frame() {
        let (mut writer, mut reader) = pair();
        let mut wire = Vec::new();
        writer.write(Kind::Payload, &vec![7; MAX_MESSAGE_BYTES], &mut wire);
        let (kind, body) = reader.read(&mut BytesMut::from(&wire[..])).unwrap().unwrap();
        assert_eq!((kind, body.len()), (Kind::Payload, MAX_MESSAGE_BYTES));
    }
}
