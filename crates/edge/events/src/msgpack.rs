//! A minimal MessagePack reader for untrusted input: it allocates nothing for a length that the input's bytes do not
//! back.

/// The input ends too early, or is not MessagePack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The next value; of arrays and maps only the length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Array(usize),
    Map(usize),
    Ext,
}

/// A position in the input.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// The unread input.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn length(&mut self, bytes: usize) -> Result<usize, Malformed> {
        let taken = self.take(bytes)?;
        Ok(taken.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    /// The length of an array or map, if the input is long enough for so many entries.
    fn backed(&self, count: usize, entry_bytes: usize) -> Result<usize, Malformed> {
        if count.checked_mul(entry_bytes).is_some_and(|bytes| bytes <= self.rest.len()) {
            Ok(count)
        } else {
            Err(Malformed)
        }
    }

    /// Reads the next value.
    pub fn head(&mut self) -> Result<Head<'a>, Malformed> {
        let [byte] = self.take_array()?;
        Ok(match byte {
            0x00..=0x7f => Head::Unsigned(u64::from(byte)),
            0x80..=0x8f => Head::Map(self.backed(usize::from(byte & 15), 2)?),
            0x90..=0x9f => Head::Array(self.backed(usize::from(byte & 15), 1)?),
            0xa0..=0xbf => Head::Str(self.take(usize::from(byte & 31))?),
            0xc0 => Head::Nil,
            0xc1 => return Err(Malformed),
            0xc2 | 0xc3 => Head::Bool,
            0xc4..=0xc6 => {
                let length = self.length(1 << (byte - 0xc4))?;
                Head::Bin(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (byte - 0xc7))?;
                self.take(length.saturating_add(1))?;
                Head::Ext
            }
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.take_array()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.take_array()?)),
            0xcc..=0xcf => Head::Unsigned(self.length(1 << (byte - 0xcc))? as u64),
            0xd0 => Head::Signed(i64::from(i8::from_be_bytes(self.take_array()?))),
            0xd1 => Head::Signed(i64::from(i16::from_be_bytes(self.take_array()?))),
            0xd2 => Head::Signed(i64::from(i32::from_be_bytes(self.take_array()?))),
            0xd3 => Head::Signed(i64::from_be_bytes(self.take_array()?)),
            0xd4..=0xd8 => {
                self.take(1 + (1 << (byte - 0xd4)))?;
                Head::Ext
            }
            0xd9..=0xdb => {
                let length = self.length(1 << (byte - 0xd9))?;
                Head::Str(self.take(length)?)
            }
            0xdc | 0xdd => {
                let count = self.length(2 << (byte - 0xdc))?;
                Head::Array(self.backed(count, 1)?)
            }
            0xde | 0xdf => {
                let count = self.length(2 << (byte - 0xde))?;
                Head::Map(self.backed(count, 2)?)
            }
            0xe0..=0xff => Head::Signed(i64::from(byte as i8)),
        })
    }

    /// Reads a string, with a fast path for short ones, which nearly all keys are.
    #[inline]
    pub fn word(&mut self) -> Result<&'a [u8], Malformed> {
        if let [head @ 0xa0..=0xbf, rest @ ..] = self.rest
            && let Some((word, rest)) = rest.split_at_checked(usize::from(head & 31))
        {
            self.rest = rest;
            return Ok(word);
        }
        match self.head()? {
            Head::Str(word) => Ok(word),
            _ => Err(Malformed),
        }
    }

    /// Skips one value of any depth. It counts the pending values and needs no stack.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        let mut to_come = 1usize;
        while to_come > 0 {
            to_come -= 1;
            to_come += match self.head()? {
                Head::Array(count) => count,
                Head::Map(count) => 2 * count,
                _ => 0,
            };
        }
        Ok(())
    }

    /// Reads a 64-bit number, as most hashes are.
    #[inline]
    pub fn long(&mut self) -> Option<u64> {
        let (number, rest) = self.rest.strip_prefix(&[0xcf])?.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_be_bytes(*number))
    }

    /// Reads an unsigned number of at most 32 bits, with a fast path for token ids.
    #[inline]
    pub fn small(&mut self) -> Option<u32> {
        let (value, bytes) = match *self.rest {
            [byte @ 0..=0x7f, ..] => (u32::from(byte), 1),
            [0xcd, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
            [0xcc, a, ..] => (u32::from(a), 2),
            [0xce, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
            _ => return None,
        };
        self.rest = &self.rest[bytes..];
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(bytes: &[u8]) -> Result<Head<'_>, Malformed> {
        Reader::new(bytes).head()
    }

    #[test]
    fn every_kind_of_number_is_read() {
        assert_eq!(head(&[0x7f]), Ok(Head::Unsigned(127)));
        assert_eq!(head(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]), Ok(Head::Unsigned(u64::MAX)));
        assert_eq!(head(&[0xfb]), Ok(Head::Signed(-5)));
        assert_eq!(head(&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]), Ok(Head::Signed(i64::MIN)));
        assert_eq!(head(&[0xcb, 0x40, 0x93, 0x4a, 0, 0, 0, 0, 0]), Ok(Head::Float(1234.5)));
    }

    #[test]
    fn a_length_without_its_bytes_is_malformed() {
        for bytes in [
            &b""[..],
            &[0xdd, 255, 255, 255, 255],
            &[0xdf, 0, 0, 0, 1, 0],
            &[0xc6, 255, 255, 255, 255, 0],
            &[0xdb, 0, 0, 1, 0],
            &[0xc9, 255, 255, 255, 255, 0],
            &[0xcb, 0],
            &[0x93, 0, 0],
            &[0xc1],
        ] {
            assert_eq!(head(bytes), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn a_skipped_value_is_skipped_completely() {
        let bytes = [0x82, 0xa1, b'a', 0x92, 0xc0, 0xd6, 1, 2, 3, 4, 5, 0x05, 0x90, 0x2a];
        let mut reader = Reader::new(&bytes);
        reader.skip().unwrap();
        assert_eq!(reader.head(), Ok(Head::Unsigned(42)));
    }

    #[test]
    fn nested_values_need_no_stack() {
        let mut deep = vec![0x91; 1_000_000];
        deep.push(0xc0);
        assert_eq!(Reader::new(&deep).skip(), Ok(()));
    }
}
