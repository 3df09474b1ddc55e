//! Transcodes JSON to MessagePack, so that one reader understands both.
//!
//! Only the names of blocks differ: in JSON a byte hash is a string of hex digits.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

/// Appends a JSON value as MessagePack.
pub fn transcode(json: &str, out: &mut Vec<u8>) -> serde_json::Result<()> {
    Writer { out, strings: Strings::Text }.deserialize(&mut serde_json::Deserializer::from_str(json))
}

/// The meaning of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strings {
    Text,
    /// Bytes, two hex digits each.
    Hex,
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    strings: Strings,
}

impl Writer<'_> {
    fn value(&mut self, strings: Strings) -> Writer<'_> {
        Writer { out: self.out, strings }
    }

    fn long(&mut self, head: u8, bytes: &[u8]) {
        self.out.push(head);
        self.out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        self.out.extend_from_slice(bytes);
    }

    /// Writes a head whose count follows later. Returns where to write it.
    fn open(&mut self, head: u8) -> usize {
        self.out.extend_from_slice(&[head, 0, 0, 0, 0]);
        self.out.len() - 4
    }

    fn close(&mut self, at: usize, count: u32) {
        self.out[at..at + 4].copy_from_slice(&count.to_be_bytes());
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an event")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.out.push(0xc0);
        Ok(())
    }

    fn visit_bool<E: Error>(self, is_true: bool) -> Result<(), E> {
        self.out.push(0xc2 + u8::from(is_true));
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        match u32::try_from(number) {
            Ok(small) => {
                self.out.push(0xce);
                self.out.extend_from_slice(&small.to_be_bytes());
            }
            Err(_) => {
                self.out.push(0xcf);
                self.out.extend_from_slice(&number.to_be_bytes());
            }
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.out.push(0xd3);
        self.out.extend_from_slice(&number.to_be_bytes());
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.out.push(0xcb);
        self.out.extend_from_slice(&number.to_be_bytes());
        Ok(())
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        match self.strings {
            Strings::Text => self.long(0xdb, text.as_bytes()),
            Strings::Hex => self.long(0xc6, &hex(text).ok_or_else(|| E::custom("no hex digits"))?),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let (at, strings, mut count) = (self.open(0xdd), self.strings, 0);
        while items.next_element_seed(self.value(strings))?.is_some() {
            count += 1;
        }
        self.close(at, count);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let (at, mut count) = (self.open(0xdf), 0);
        loop {
            let begin = self.out.len();
            if entries.next_key_seed(self.value(Strings::Text))?.is_none() {
                break;
            }
            let is_name =
                self.out[begin..].ends_with(b"block_hashes") || self.out[begin..].ends_with(b"block_hash");
            entries.next_value_seed(self.value(if is_name { Strings::Hex } else { Strings::Text }))?;
            count += 1;
        }
        self.close(at, count);
        Ok(())
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
