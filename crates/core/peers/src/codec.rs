//! Byte encoding with variable-length integers. Reading never panics, and never allocates more than the input
//! holds.
//!
//! Structures that may grow are written with their length. A reader that knows only the beginning skips the
//! rest, so a later version may append fields and add kinds of records without changing what exists.

use std::sync::Arc;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The input is shorter than its lengths say.
    #[error("the message ends too early")]
    Truncated,
    /// A number is out of range, or a required value is unknown.
    #[error("the message is malformed: a value is out of range")]
    Malformed,
    /// The sender requires a later protocol version.
    #[error("the message needs protocol version {0}: upgrade this router")]
    Version(u8),
}

#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Variable-length integer: seven bits per byte, lowest bits first.
    pub fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// A hash, as eight fixed bytes: hashes are rarely small.
    pub fn hash(&mut self, hash: u64) {
        self.bytes.extend_from_slice(&hash.to_le_bytes());
    }

    pub fn hashes(&mut self, hashes: &[u64]) {
        self.varint(hashes.len() as u64);
        hashes.iter().for_each(|&hash| self.hash(hash));
    }

    /// Bytes, preceded by their number.
    pub fn sized_bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A structure that may grow, preceded by its length.
    pub fn block(&mut self, write: impl FnOnce(&mut Writer)) {
        let start = self.bytes.len();
        self.byte(0);
        write(self);
        let length = self.bytes.len() - start - 1;
        if length < 0x80 {
            self.bytes[start] = length as u8;
        } else {
            let mut prefix = Writer::default();
            prefix.varint(length as u64);
            self.bytes.splice(start..=start, prefix.bytes);
        }
    }

    /// A record: kind, length and body. A reader skips unknown kinds.
    pub fn record(&mut self, kind: u8, write: impl FnOnce(&mut Writer)) {
        self.byte(kind);
        self.block(write);
    }
}

#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn byte(&mut self) -> Result<u8, BadMessage> {
        let (&byte, rest) = self.rest.split_first().ok_or(BadMessage::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    pub fn varint(&mut self) -> Result<u64, BadMessage> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(BadMessage::Malformed);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadMessage::Malformed)
    }

    pub fn varint_u32(&mut self) -> Result<u32, BadMessage> {
        u32::try_from(self.varint()?).map_err(|_| BadMessage::Malformed)
    }

    pub fn hash(&mut self) -> Result<u64, BadMessage> {
        let (hash, rest) = self.rest.split_first_chunk().ok_or(BadMessage::Truncated)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*hash))
    }

    pub fn hashes(&mut self) -> Result<Arc<[u64]>, BadMessage> {
        let count = self.varint()? as usize;
        let length = count.checked_mul(8).filter(|&length| length <= self.rest.len());
        let (hashes, rest) = self.rest.split_at(length.ok_or(BadMessage::Truncated)?);
        self.rest = rest;
        Ok(hashes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
    }

    pub fn sized_bytes(&mut self) -> Result<&'a [u8], BadMessage> {
        let length = usize::try_from(self.varint()?).map_err(|_| BadMessage::Malformed)?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(BadMessage::Truncated)?;
        self.rest = rest;
        Ok(text)
    }

    pub fn block(&mut self) -> Result<Reader<'a>, BadMessage> {
        self.sized_bytes().map(Reader::new)
    }

    /// The next record and its kind; `None` at the end.
    pub fn record(&mut self) -> Result<Option<(u8, Reader<'a>)>, BadMessage> {
        if self.is_empty() {
            return Ok(None);
        }
        Ok(Some((self.byte()?, self.block()?)))
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_length_survive_encoding() {
        for length in [0, 1, 127, 128, 129, 16_383, 16_384, 100_000] {
            let mut writer = Writer::default();
            writer.record(7, |writer| writer.bytes.extend(std::iter::repeat_n(9, length)));
            writer.varint(5);
            let mut reader = Reader::new(&writer.bytes);
            let (kind, mut body) = reader.record().unwrap().unwrap();
            assert_eq!((kind, body.rest().len(), reader.varint()), (7, length, Ok(5)));
            assert!(reader.record().unwrap().is_none());
        }
    }
}
