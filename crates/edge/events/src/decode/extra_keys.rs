//! What a block depends on beside its tokens: adapter, images, salt.
//!
//! vLLM lists for each block, without tags and in this order: the adapter's name, images, the cache salt (first block
//! of a prompt only), digests of prompt embeddings. Two things matter here: the salt is a namespace, and from the
//! first block with anything else on, the tokens do not determine the content.

use crate::msgpack::{Head, Malformed, Reader};

/// The encoding of the event. Only arrays (up to vLLM 0.23) have images as bare strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEncoding {
    Array,
    Map,
}

/// The meaning of a chain's keys.
#[derive(Debug)]
pub struct Content<'a> {
    pub text_blocks: u32,
    pub salt: Option<&'a [u8]>,
}

/// The meaning of one key.
enum Key<'a> {
    Adapter,
    Salt(&'a [u8]),
    NoText,
}

/// Reads the keys of all blocks of a chain; `is_first` where the chain begins a prompt.
pub fn read<'a>(
    mut reader: Reader<'a>,
    lora: Option<&[u8]>,
    is_first: bool,
    encoding: EventEncoding,
    content: &mut Content<'a>,
) -> Result<(), Malformed> {
    let blocks = match reader.head()? {
        Head::Nil => return Ok(()),
        Head::Array(blocks) => blocks,
        _ => return Err(Malformed),
    };
    for block in 0..blocks {
        let count = match reader.head()? {
            Head::Nil => continue,
            Head::Array(count) => count,
            _ => return Err(Malformed),
        };
        for _ in 0..count {
            match read_key(&mut reader, lora, is_first && block == 0, encoding)? {
                Key::Adapter => {}
                Key::Salt(salt) => content.salt = Some(salt),
                Key::NoText => content.text_blocks = content.text_blocks.min(block as u32),
            }
        }
    }
    Ok(())
}

fn read_key<'a>(
    reader: &mut Reader<'a>,
    lora: Option<&[u8]>,
    may_be_salt: bool,
    encoding: EventEncoding,
) -> Result<Key<'a>, Malformed> {
    let begin = *reader;
    match reader.head()? {
        Head::Str(key) if lora == Some(key) => Ok(Key::Adapter),
        // An adapter's number, as in vLLM 0.9; the event names it too.
        Head::Unsigned(_) => Ok(Key::Adapter),
        Head::Str(key) if may_be_salt && (encoding == EventEncoding::Map || !is_digest(key)) => {
            Ok(Key::Salt(key))
        }
        _ => {
            *reader = begin;
            reader.skip()?;
            Ok(Key::NoText)
        }
    }
}

/// Up to 0.18 an image's hash was a bare string like a salt. Taking a salt for an image only costs hits.
fn is_digest(key: &[u8]) -> bool {
    key.len() >= 32 && key.iter().all(u8::is_ascii_hexdigit)
}
