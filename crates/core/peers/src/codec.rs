//! Numbers as bytes: small ones are short. Whatever comes is read without a panic, and nothing is allocated that is not there.
//!
//! What may grow is written with its length: whoever knows only its beginning reads that and goes on behind its end. So a later version
//! appends to blocks and adds kinds of records, and changes nothing that is there.

use std::sync::Arc;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// It ends too early.
    #[error("the message ends too early")]
    Truncated,
    /// A number is out of bounds, or a word is unknown.
    #[error("the message is garbled")]
    Garbled,
    /// It needs a later version of this program.
    #[error("the message needs version {0} of the language to be understood")]
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

    /// Seven bits a byte, the lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// A hash: none of its bits is likely to be zero.
    pub fn hash(&mut self, hash: u64) {
        self.bytes.extend_from_slice(&hash.to_le_bytes());
    }

    pub fn hashes(&mut self, hashes: &[u64]) {
        self.number(hashes.len() as u64);
        hashes.iter().for_each(|&hash| self.hash(hash));
    }

    /// A number that may be missing, and is small where it is not.
    pub fn optional(&mut self, number: Option<u64>) {
        self.number(number.map_or(0, |number| number.saturating_add(1)));
    }

    /// Bytes, and how many.
    pub fn text(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Something that may grow, with its length before it.
    pub fn block(&mut self, write: impl FnOnce(&mut Writer)) {
        let start = self.bytes.len();
        self.byte(0);
        write(self);
        let length = self.bytes.len() - start - 1;
        if length < 0x80 {
            self.bytes[start] = length as u8;
        } else {
            let mut prefix = Writer::default();
            prefix.number(length as u64);
            self.bytes.splice(start..=start, prefix.bytes);
        }
    }

    /// One of several things, in any number, of which a reader may not know some.
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

    pub fn number(&mut self) -> Result<u64, BadMessage> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(BadMessage::Garbled);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadMessage::Garbled)
    }

    pub fn small(&mut self) -> Result<u32, BadMessage> {
        u32::try_from(self.number()?).map_err(|_| BadMessage::Garbled)
    }

    pub fn hash(&mut self) -> Result<u64, BadMessage> {
        let (hash, rest) = self.rest.split_first_chunk().ok_or(BadMessage::Truncated)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*hash))
    }

    pub fn hashes(&mut self) -> Result<Arc<[u64]>, BadMessage> {
        let count = self.number()? as usize;
        let length = count.checked_mul(8).filter(|&length| length <= self.rest.len());
        let (hashes, rest) = self.rest.split_at(length.ok_or(BadMessage::Truncated)?);
        self.rest = rest;
        Ok(hashes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect())
    }

    pub fn optional(&mut self) -> Result<Option<u64>, BadMessage> {
        Ok(self.number()?.checked_sub(1))
    }

    /// Whether something follows that may be missing.
    pub fn is_there(&mut self) -> Result<bool, BadMessage> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadMessage::Garbled),
        }
    }

    pub fn text(&mut self) -> Result<&'a [u8], BadMessage> {
        let length = usize::try_from(self.number()?).map_err(|_| BadMessage::Garbled)?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(BadMessage::Truncated)?;
        self.rest = rest;
        Ok(text)
    }

    pub fn block(&mut self) -> Result<Reader<'a>, BadMessage> {
        self.text().map(Reader::new)
    }

    /// The next one, and its kind, where there is one.
    pub fn record(&mut self) -> Result<Option<(u8, Reader<'a>)>, BadMessage> {
        if self.is_at_end() {
            return Ok(None);
        }
        Ok(Some((self.byte()?, self.block()?)))
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_length_come_out_and_what_follows_them_too() {
        for length in [0, 1, 127, 128, 129, 16_383, 16_384, 100_000] {
            let mut writer = Writer::default();
            writer.record(7, |writer| writer.bytes.extend(std::iter::repeat_n(9, length)));
            writer.number(5);
            let mut reader = Reader::new(&writer.bytes);
            let (kind, mut body) = reader.record().unwrap().unwrap();
            assert_eq!((kind, body.rest().len(), reader.number()), (7, length, Ok(5)));
            assert!(reader.record().unwrap().is_none());
        }
    }
}
