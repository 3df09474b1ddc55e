//! Protocol Buffers, as far as the endpoint picker and the export of traces need them: reads fields in place and writes
//! nested messages. There is no schema: callers name fields by their numbers.
//!
//! A reader gets every field of a message and ignores those it does not know, so newer senders do no harm. Groups, which
//! proto3 does not have, are refused.

/// A message that is not valid Protocol Buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// A field's length exceeds the rest of the message.
    #[error("a field ends after the message")]
    Truncated,
    /// A varint with more than ten bytes.
    #[error("a number is longer than 64 bits")]
    LongNumber,
    /// A group, or a wire type that does not exist.
    #[error("wire type {0} is not supported")]
    WireType(u8),
    /// Field numbers begin at 1.
    #[error("0 is no field number")]
    NoField,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A varint, or a number of fixed size.
    Number(u64),
    /// A string, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> FieldValue<'a> {
    /// The bytes of a string, of bytes or of a message; empty for a number.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            FieldValue::Bytes(bytes) => bytes,
            FieldValue::Number(_) => &[],
        }
    }

    /// The number; 0 for bytes.
    pub fn number(self) -> u64 {
        match self {
            FieldValue::Number(number) => number,
            FieldValue::Bytes(_) => 0,
        }
    }

    /// Whether a flag is set.
    pub fn is_true(self) -> bool {
        self.number() != 0
    }
}

/// The fields of a message, in order.
#[derive(Clone, Copy, Debug)]
pub struct MessageFields<'a>(&'a [u8]);

impl<'a> MessageFields<'a> {
    /// The fields of an encoded message.
    pub fn of(message: &'a [u8]) -> MessageFields<'a> {
        MessageFields(message)
    }

    fn read(&mut self) -> Result<(u64, FieldValue<'a>), BadMessage> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => FieldValue::Number(u64::from_le_bytes(*self.take_array()?)),
            2 => {
                let length = self.varint()?;
                FieldValue::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => FieldValue::Number(u32::from_le_bytes(*self.take_array()?).into()),
            other => return Err(BadMessage::WireType(other as u8)),
        };
        if key >> 3 == 0 { Err(BadMessage::NoField) } else { Ok((key >> 3, value)) }
    }

    fn varint(&mut self) -> Result<u64, BadMessage> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = *self.take_array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadMessage::LongNumber)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], BadMessage> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(BadMessage::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<&'a [u8; N], BadMessage> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadMessage::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for MessageFields<'a> {
    type Item = Result<(u64, FieldValue<'a>), BadMessage>;

    /// Ends after the first error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.0 = &[];
        }
        Some(read)
    }
}

/// Writes a message.
#[derive(Debug, Default)]
pub struct MessageWriter(Vec<u8>);

impl MessageWriter {
    /// The encoded message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// Writes a number, unless it is 0, which is the default.
    pub fn number(&mut self, field: u64, number: u64) {
        if number != 0 {
            self.present_number(field, number);
        }
    }

    /// Writes a number, also 0: among the alternatives of a `oneof`, its presence has a meaning.
    pub fn present_number(&mut self, field: u64, number: u64) {
        self.varint(field << 3);
        self.varint(number);
    }

    /// Writes a flag, unless it is not set.
    pub fn flag(&mut self, field: u64, is_set: bool) {
        self.number(field, u64::from(is_set));
    }

    /// Writes a number of eight bytes (`fixed64`, `double` as its bits), also 0.
    pub fn fixed64(&mut self, field: u64, number: u64) {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes a number of four bytes (`fixed32`), unless it is 0.
    pub fn fixed32(&mut self, field: u64, number: u32) {
        if number != 0 {
            self.varint(field << 3 | 5);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Writes a string, bytes or an encoded message.
    pub fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.bytes_follow(field, bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Writes the beginning of a field whose `length` bytes the caller sends after this message.
    pub fn bytes_follow(&mut self, field: u64, length: usize) {
        self.varint(field << 3 | 2);
        self.varint(length as u64);
    }

    /// Writes a nested message. An empty one is written too: its presence has a meaning.
    pub fn message(&mut self, field: u64, fill: impl FnOnce(&mut MessageWriter)) {
        self.varint(field << 3 | 2);
        let start = self.0.len();
        fill(self);
        let length = varint((self.0.len() - start) as u64);
        self.0.splice(start..start, length);
    }

    fn varint(&mut self, number: u64) {
        self.0.extend(varint(number));
    }
}

/// The bytes of a number.
fn varint(mut number: u64) -> impl Iterator<Item = u8> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let byte = (number & 0x7f) as u8;
        number >>= 7;
        is_over = number == 0;
        Some(if is_over { byte } else { byte | 0x80 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u64, FieldValue<'_>)>, BadMessage> {
        MessageFields::of(bytes).collect()
    }

    #[test]
    fn fields_are_read_as_they_are_written() {
        let mut writer = MessageWriter::default();
        for number in [1, 127, 128, 16_384, u64::MAX] {
            writer.number(1, number);
        }
        writer.number(2, 0);
        writer.bytes(3, b"text");
        writer.message(4, |inner| inner.message(1, |_| {}));
        writer.message(5, |inner| inner.bytes(1, &[7; 200]));
        writer.fixed64(6, 0.5_f64.to_bits());
        writer.fixed32(7, 0x301);
        writer.fixed32(8, 0);
        writer.present_number(9, 0);
        let message = writer.finish();
        let fields = read(&message).unwrap();
        let numbers: Vec<u64> = fields[..5].iter().map(|(_, value)| value.number()).collect();
        assert_eq!(numbers, [1, 127, 128, 16_384, u64::MAX]);
        assert_eq!(fields[5], (3, FieldValue::Bytes(b"text")), "a default is not written");
        assert_eq!(fields[6], (4, FieldValue::Bytes(&[0x0a, 0])));
        assert_eq!(read(fields[7].1.bytes()).unwrap(), [(1, FieldValue::Bytes(&[7; 200]))]);
        let number = FieldValue::Number;
        assert_eq!(fields[8..], [(6, number(0.5_f64.to_bits())), (7, number(0x301)), (9, number(0))]);
    }

    #[test]
    fn bad_messages_are_refused_with_a_reason() {
        for (bytes, why) in [
            (&[0x0a, 5, 1][..], BadMessage::Truncated),
            (&[0x0a], BadMessage::Truncated),
            (&[0x80], BadMessage::Truncated),
            (&[0x09, 1, 2], BadMessage::Truncated),
            (&[0x0b], BadMessage::WireType(3)),
            (&[0x02, 0], BadMessage::NoField),
            (&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], BadMessage::LongNumber),
            (&[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], BadMessage::Truncated),
        ] {
            assert_eq!(read(bytes), Err(why), "{bytes:?}");
        }
    }
}
