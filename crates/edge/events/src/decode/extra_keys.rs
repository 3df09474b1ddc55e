//! What a block depends on beside its tokens: adapter, images, salt.
//!
//! vLLM lists for each block, without tags and in this order: the adapter's name, images, the cache salt (first block
//! of a prompt only), digests of prompt embeddings. The salt is a namespace. Since 0.19 a medium is its hash and the
//! token where it begins, counted from the block's start and negative in later blocks: tokens and media then determine
//! the content. From the first block with anything else on, nothing does.

use warmroute_types::MediumStart;
use xxhash_rust::xxh3::xxh3_64;

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
    /// Leading blocks with text only.
    pub text_blocks: u32,
    /// Leading blocks with text and media only.
    pub readable_blocks: u32,
    pub block_tokens: u32,
    pub media: Vec<MediumStart>,
    pub salt: Option<&'a [u8]>,
}

impl Content<'_> {
    /// Takes in a medium of a block that begins at this token of the block.
    fn add_medium(&mut self, block: u32, hash: &[u8], offset: i64) {
        self.text_blocks = self.text_blocks.min(block);
        match u32::try_from(offset) {
            Ok(offset) if offset < self.block_tokens => {
                let token = block.saturating_mul(self.block_tokens).saturating_add(offset);
                match self.media.last() {
                    Some(last) if last.token >= token => {
                        self.readable_blocks = self.readable_blocks.min(block);
                    }
                    _ => self.media.push(MediumStart { token, hash: xxh3_64(hash) }),
                }
            }
            Ok(_) => self.readable_blocks = self.readable_blocks.min(block),
            // It began in an earlier block.
            Err(_) => {}
        }
    }
}

/// The meaning of one key.
enum Key<'a> {
    Adapter,
    Salt(&'a [u8]),
    Medium { hash: &'a [u8], offset: i64 },
    Unknown,
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
                Key::Medium { hash, offset } => content.add_medium(block as u32, hash, offset),
                Key::Unknown => {
                    content.text_blocks = content.text_blocks.min(block as u32);
                    content.readable_blocks = content.readable_blocks.min(block as u32);
                }
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
        Head::Array(2) => {
            let (hash, offset) = (reader.head()?, reader.head()?);
            let offset = match offset {
                Head::Unsigned(offset) => i64::try_from(offset).ok(),
                Head::Signed(offset) => Some(offset),
                _ => None,
            };
            match (hash, offset) {
                (Head::Str(hash), Some(offset)) => Ok(Key::Medium { hash, offset }),
                _ => skip_key(begin, reader),
            }
        }
        _ => skip_key(begin, reader),
    }
}

fn skip_key<'a>(begin: Reader<'a>, reader: &mut Reader<'a>) -> Result<Key<'a>, Malformed> {
    *reader = begin;
    reader.skip()?;
    Ok(Key::Unknown)
}

/// Up to 0.18 an image's hash was a bare string like a salt. Taking a salt for an image only costs hits.
fn is_digest(key: &[u8]) -> bool {
    key.len() >= 32 && key.iter().all(u8::is_ascii_hexdigit)
}
