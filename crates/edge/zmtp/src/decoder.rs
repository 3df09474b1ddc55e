//! Decodes bytes to frames and messages.
//!
//! A frame is `flags, length (1 byte, or 8 when long), body`. The length is checked before the body is read, so a
//! peer cannot make us allocate more than the message limit.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Message;
use crate::byte_budget::ByteBudget;
use crate::error::Error;
use crate::options::Options;

const MORE: u8 = 1;
const LONG: u8 = 2;
/// The frame is a command.
pub const COMMAND: u8 = 4;

/// Bytes read from a socket at once, where no frame needs more.
const READ_BYTES: usize = 64 << 10;

/// A decoded item.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    Message(Message),
    Command(Bytes),
}

/// The state of decoding.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    parts: Message,
    parts_bytes: usize,
    bytes_max: usize,
    parts_max: usize,
    /// The budget shared with other connections, and the share of this one.
    budget: Option<ByteBudget>,
    share: usize,
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.budget.iter().for_each(|budget| _ = budget.change(self.share, 0));
    }
}

impl Decoder {
    pub fn new(options: &Options) -> Decoder {
        Decoder {
            buffer: BytesMut::new(),
            parts: Message::new(),
            parts_bytes: 0,
            bytes_max: options.message_bytes_max,
            parts_max: options.message_parts_max,
            budget: options.budget.clone(),
            share: 0,
        }
    }

    /// The buffer to read into.
    pub fn room(&mut self) -> &mut BytesMut {
        // A frame in progress has reserved its own room.
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 8 {
            self.buffer.reserve(READ_BYTES);
        }
        &mut self.buffer
    }

    /// The next complete message or command.
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        let next = self.next_item()?;
        let Some(budget) = &self.budget else { return Ok(next) };
        let share = self.buffer.len() + self.parts_bytes;
        let fits = budget.change(self.share, share);
        self.share = share;
        if fits { Ok(next) } else { Err(Error::BudgetExceeded) }
    }

    fn next_item(&mut self) -> Result<Option<Item>, Error> {
        while let Some((flags, body)) = self.next_frame()? {
            if flags & COMMAND != 0 {
                return Ok(Some(Item::Command(body)));
            }
            self.parts_bytes += body.len();
            self.parts.push(body);
            if flags & MORE == 0 {
                self.parts_bytes = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.parts))));
            }
        }
        Ok(None)
    }

    fn next_frame(&mut self) -> Result<Option<(u8, Bytes)>, Error> {
        let Some((flags, head, length)) = read_head(&self.buffer)? else { return Ok(None) };
        let left = self.bytes_max - self.parts_bytes.min(self.bytes_max);
        let length = usize::try_from(length).ok().filter(|length| *length <= left);
        let length = length.ok_or(Error::TooLarge(self.bytes_max))?;
        if flags & COMMAND == 0 && self.parts.len() >= self.parts_max {
            return Err(Error::TooManyParts(self.parts_max));
        }
        let missing = (head + length).saturating_sub(self.buffer.len());
        if missing > 0 {
            // The buffer grows as bytes arrive: a length alone reserves no memory.
            self.buffer.reserve(missing.min(READ_BYTES.max(self.buffer.len())));
            return Ok(None);
        }
        self.buffer.advance(head);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

/// Flags, header length and body length.
fn read_head(buffer: &[u8]) -> Result<Option<(u8, usize, u64)>, Error> {
    let Some(&flags) = buffer.first() else { return Ok(None) };
    if flags > 7 || flags & (COMMAND | MORE) == COMMAND | MORE {
        return Err(Error::Protocol("a frame has unknown flags"));
    }
    if flags & LONG == 0 {
        return Ok(buffer.get(1).map(|length| (flags, 2, u64::from(*length))));
    }
    let length = buffer.get(1..9).and_then(|length| length.try_into().ok());
    Ok(length.map(|length| (flags, 9, u64::from_be_bytes(length))))
}

/// Appends the header of a frame.
pub fn put_frame_head(flags: u8, length: usize, out: &mut BytesMut) {
    match u8::try_from(length) {
        Ok(length) => out.put_slice(&[flags, length]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(length as u64);
        }
    }
}

/// Appends a message.
pub fn put_message<P: AsRef<[u8]>>(parts: &[P], out: &mut BytesMut) {
    for (at, part) in parts.iter().enumerate() {
        let flags = if at + 1 < parts.len() { MORE } else { 0 };
        put_frame_head(flags, part.as_ref().len(), out);
        out.put_slice(part.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder() -> Decoder {
        Decoder::new(&Options { message_bytes_max: 1_000, message_parts_max: 4, ..Options::default() })
    }

    fn feed(decoder: &mut Decoder, bytes: &[u8]) -> Result<Vec<Item>, Error> {
        decoder.room().put_slice(bytes);
        let mut items = Vec::new();
        while let Some(item) = decoder.next()? {
            items.push(item);
        }
        Ok(items)
    }

    #[test]
    fn a_message_split_anywhere_is_the_same_message() {
        let parts = [vec![1; 3], Vec::new(), vec![2; 300]];
        let mut wire = BytesMut::new();
        put_message(&parts, &mut wire);
        let whole = Item::Message(parts.iter().cloned().map(Bytes::from).collect());
        for cut in 0..=wire.len() {
            let mut decoder = decoder();
            let mut items = feed(&mut decoder, &wire[..cut]).unwrap();
            items.extend(feed(&mut decoder, &wire[cut..]).unwrap());
            assert_eq!(
                items,
                [Item::Message(match &whole {
                    Item::Message(message) => message.clone(),
                    Item::Command(_) => unreachable!(),
                })],
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_command_may_stand_between_the_parts_of_a_message() {
        let items = feed(&mut decoder(), b"\x01\x01a\x04\x05\x04PONG\x00\x01b").unwrap();
        let message = vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        assert_eq!(items, [Item::Command(Bytes::from_static(b"\x04PONG")), Item::Message(message)]);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_body() {
        for wire in [
            &b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\x02\0\0\0\0\0\0\x03\xe9",
            b"\x06\0\0\0\0\x80\0\0\0",
        ] {
            let mut decoder = decoder();
            assert!(matches!(feed(&mut decoder, wire), Err(Error::TooLarge(1_000))), "{wire:?}");
            assert!(decoder.buffer.capacity() <= 2 * READ_BYTES);
        }
        let mut many = Vec::new();
        (0..5).for_each(|_| {
            many.extend_from_slice(&[1, 250].iter().copied().chain([0; 250]).collect::<Vec<u8>>())
        });
        assert!(matches!(feed(&mut decoder(), &many), Err(Error::TooLarge(1_000) | Error::TooManyParts(4))));
    }

    #[test]
    fn no_stream_of_bytes_panics_or_grows_the_buffer() {
        let mut random = 1u64;
        for _ in 0..100_000 {
            let mut decoder = decoder();
            for _ in 0..8 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut bytes = (random >> 8).to_be_bytes();
                // Mostly valid flags.
                bytes[0] &= if random.is_multiple_of(5) { 0xff } else { 3 };
                if feed(&mut decoder, &bytes[..1 + random as usize % 8]).is_err() {
                    break;
                }
            }
            assert!(decoder.buffer.capacity() <= 2 * READ_BYTES);
        }
    }

    #[test]
    fn unfinished_messages_share_a_budget() {
        let budget = ByteBudget::new(1_500);
        let options = Options { budget: Some(budget.clone()), ..Options::default() };
        let mut decoders = [0; 4].map(|_| Decoder::new(&options));
        let part = [&[2, 0, 0, 0, 0, 0, 0, 4, 0][..], &[7; 500]].concat();
        let fed: Vec<bool> = decoders.iter_mut().map(|decoder| feed(decoder, &part).is_ok()).collect();
        assert_eq!(fed, [true, true, false, false], "509 bytes each");
        drop(decoders);
        assert_eq!(budget.used(), 0);
        let mut decoder = Decoder::new(&options);
        for _ in 0..10 {
            assert_eq!(
                feed(&mut decoder, b"\x00\x03abc").unwrap().len(),
                1,
                "finished messages do not count"
            );
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn too_many_parts_and_unknown_flags_are_refused() {
        assert!(matches!(feed(&mut decoder(), &[1, 0].repeat(5)), Err(Error::TooManyParts(4))));
        for flags in [5, 8, 0x80, 0xff] {
            assert!(matches!(feed(&mut decoder(), &[flags]), Err(Error::Protocol(_))), "{flags}");
        }
    }
}
