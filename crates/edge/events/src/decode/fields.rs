//! The fields of an event while it is decoded, and the event that they form.

use warmroute_types::{Attention, CacheEvent, Group, Medium, RemovedBlocks, StoredBlocks, UnfollowedKind};
use xxhash_rust::xxh3::xxh3_64;

use super::extra_keys::{self, Content, EventEncoding};
use crate::msgpack::{Head, Malformed, Reader};

/// Most blocks of one event, and of one batch. A prompt of a million tokens has as many where a block is one token.
pub(super) const BLOCKS_MAX: usize = 1 << 20;

/// Most tokens of one event.
const TOKENS_MAX: usize = 1 << 24;

/// MessagePack's nil.
const NIL: u8 = 0xc0;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

/// The meaning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Names,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    /// In SGLang's arrays a map with the salt takes this position.
    LoraName,
    ExtraKeys,
    Group,
    SpecKind,
    Window,
    Locality,
    /// Tokens after a block on which its name depends too (vLLM 0.33).
    Lookahead,
    Unknown,
}

const STORED: [Field; 11] = [
    Field::Names,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::SpecKind,
    Field::Window,
];
const REMOVED: [Field; 3] = [Field::Names, Field::Medium, Field::Group];

impl Kind {
    pub fn of(tag: &[u8]) -> Kind {
        match tag {
            b"BlockStored" => Kind::Stored,
            b"BlockRemoved" => Kind::Removed,
            b"AllBlocksCleared" => Kind::Cleared,
            _ => Kind::Unknown,
        }
    }

    pub fn field_at(self, at: usize) -> Field {
        let fields: &[Field] = match self {
            Kind::Stored => &STORED,
            Kind::Removed => &REMOVED,
            Kind::Cleared | Kind::Unknown => &[],
        };
        fields.get(at).copied().unwrap_or(Field::Unknown)
    }

    pub fn field_named(self, name: &[u8]) -> Field {
        match (self, name) {
            (Kind::Cleared | Kind::Unknown, _) => Field::Unknown,
            (_, b"block_hashes") => Field::Names,
            (_, b"parent_block_hash") => Field::Parent,
            (_, b"token_ids") => Field::Tokens,
            (_, b"block_size") => Field::BlockSize,
            (_, b"lora_id") => Field::LoraId,
            (_, b"medium") => Field::Medium,
            (_, b"lora_name") => Field::LoraName,
            (_, b"extra_keys") => Field::ExtraKeys,
            (_, b"group_idx") => Field::Group,
            (_, b"kv_cache_spec_kind") => Field::SpecKind,
            (_, b"kv_cache_spec_sliding_window") => Field::Window,
            (_, b"locality") => Field::Locality,
            (_, b"lookahead_token_ids") => Field::Lookahead,
            _ => Field::Unknown,
        }
    }
}

/// The fields read so far.
#[derive(Debug)]
pub struct Fields<'a> {
    encoding: EventEncoding,
    names: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Option<Vec<u32>>,
    block_size: u32,
    lora_id: Option<u64>,
    lora_name: Option<&'a [u8]>,
    salt: Option<&'a [u8]>,
    medium: Medium,
    is_remote: bool,
    has_lookahead: bool,
    extra_keys: Option<Reader<'a>>,
    group: Option<u16>,
    spec_kind: Option<&'a [u8]>,
    window: Option<u64>,
}

impl<'a> Fields<'a> {
    pub fn new(encoding: EventEncoding) -> Fields<'a> {
        Fields {
            encoding,
            names: None,
            parent: None,
            tokens: None,
            block_size: 0,
            lora_id: None,
            lora_name: None,
            salt: None,
            medium: Medium::Gpu,
            is_remote: false,
            has_lookahead: false,
            extra_keys: None,
            group: None,
            spec_kind: None,
            window: None,
        }
    }

    /// Reads the value of a field.
    pub fn read(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        match field {
            Field::Names => self.names = Some(read_names(reader)?),
            Field::Parent => self.parent = read_name(reader)?,
            Field::Tokens => self.tokens = Some(read_tokens(reader)?),
            Field::BlockSize => self.block_size = reader.small().ok_or(Malformed)?,
            Field::LoraId => self.lora_id = read_id(reader)?,
            Field::LoraName => self.read_lora_name(reader)?,
            Field::Medium => self.medium = read_text(reader)?.map_or(Medium::Gpu, medium),
            Field::Group => self.group = read_id(reader)?.map(|id| id.min(65_535) as u16),
            Field::SpecKind => self.spec_kind = read_text(reader)?,
            Field::Window => self.window = read_id(reader)?,
            Field::Locality => self.is_remote = read_text(reader)? == Some(b"REMOTE"),
            Field::ExtraKeys => {
                self.extra_keys = Some(*reader);
                reader.skip()?;
            }
            Field::Lookahead => {
                self.has_lookahead |= reader.rest().first() != Some(&NIL);
                reader.skip()?;
            }
            Field::Unknown => reader.skip()?,
        }
        Ok(())
    }

    fn read_lora_name(&mut self, reader: &mut Reader<'a>) -> Result<(), Malformed> {
        match reader.head()? {
            Head::Nil => Ok(()),
            Head::Str(name) => {
                self.lora_name = Some(name);
                Ok(())
            }
            Head::Map(count) => {
                for _ in 0..count {
                    let key = reader.head()?;
                    if key == Head::Str(b"cache_salt") {
                        self.salt = read_text(reader)?;
                    } else {
                        reader.skip()?;
                    }
                }
                Ok(())
            }
            _ => Err(Malformed),
        }
    }

    /// The event that these fields form.
    pub fn event(mut self, kind: Kind) -> Result<Option<CacheEvent>, Malformed> {
        match kind {
            Kind::Unknown => Ok(None),
            Kind::Cleared => Ok(Some(CacheEvent::Cleared)),
            Kind::Removed => {
                let names = self.names.take().ok_or(Malformed)?;
                let (medium, group) = (self.place(), self.group.unwrap_or(0));
                Ok(Some(CacheEvent::Removed(RemovedBlocks { names, medium, group })))
            }
            Kind::Stored => self.stored().map(|stored| Some(CacheEvent::Stored(stored))),
        }
    }

    /// What the group must hold, by vLLM's kind of cache (`KVCacheSpecKind`).
    fn attention(&self) -> Attention {
        match self.spec_kind {
            _ if self.has_lookahead => Attention::Unfollowed(UnfollowedKind::Lookahead),
            // Before 0.22 engines state no kind. The only group of most models is a full one.
            None if self.group.unwrap_or(0) == 0 => Attention::Full,
            None => Attention::Unfollowed(UnfollowedKind::Unstated),
            Some(b"full_attention" | b"mla_attention" | b"sink_full_attention") => Attention::Full,
            Some(b"sliding_window" | b"sliding_window_mla") => match self.window {
                Some(tokens @ 1..=0xffff_ffff) => Attention::Window { tokens: tokens as u32 },
                _ => Attention::Unfollowed(UnfollowedKind::WindowWithoutSize),
            },
            Some(b"mamba") => Attention::State,
            Some(b"chunked_local_attention") => Attention::Unfollowed(UnfollowedKind::ChunkedLocal),
            Some(_) => Attention::Unfollowed(UnfollowedKind::Unknown),
        }
    }

    fn place(&self) -> Medium {
        if self.is_remote { Medium::External } else { self.medium }
    }

    fn stored(self) -> Result<StoredBlocks, Malformed> {
        let medium = self.place();
        let lora = self.lora_name.map(quote).or_else(|| self.lora_id.map(|id| format!("#{id}").into()));
        let mut group = Group { index: self.group.unwrap_or(0), attention: self.attention() };
        let (names, tokens) = (self.names.ok_or(Malformed)?, self.tokens.ok_or(Malformed)?);
        let named_tokens = names.len().checked_mul(self.block_size as usize).ok_or(Malformed)?;
        let is_short = named_tokens > tokens.len() || self.block_size == 0 && !names.is_empty();
        // Some engines report copied blocks without their tokens, or even without the block size.
        if is_short && !tokens.is_empty() {
            return Err(Malformed);
        }
        // Groups that cache only some of a sequence's blocks name fewer blocks than their tokens fill.
        let is_by_name = tokens.is_empty() && medium != Medium::Gpu;
        if group.attention == Attention::Full && (is_short || named_tokens != tokens.len()) && !is_by_name {
            group.attention = Attention::Unplaced;
        }
        let mut content = Content {
            text_blocks: names.len() as u32,
            readable_blocks: names.len() as u32,
            block_tokens: self.block_size,
            media: Vec::new(),
            salt: self.salt,
        };
        if let Some(keys) = self.extra_keys {
            let is_first = self.parent.is_none();
            extra_keys::read(keys, self.lora_name, is_first, self.encoding, &mut content)?;
        }
        Ok(StoredBlocks {
            text_blocks: content.text_blocks,
            media_blocks: content.readable_blocks.saturating_sub(content.text_blocks),
            media: content.media,
            salt: content.salt.map(quote),
            names,
            parent: self.parent,
            tokens,
            block_tokens: self.block_size,
            lora,
            medium,
            group,
        })
    }
}

fn quote(text: &[u8]) -> Box<str> {
    String::from_utf8_lossy(text).into()
}

fn medium(name: &[u8]) -> Medium {
    match name {
        b"GPU" | b"gpu" => Medium::Gpu,
        b"DISK" | b"disk" | b"STORAGE" | b"storage" => Medium::Disk,
        name if name.starts_with(b"CPU") || name.starts_with(b"cpu") => Medium::Host,
        // Any other medium is not the GPU.
        _ => Medium::External,
    }
}

fn read_text<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, Malformed> {
    if let [NIL, ..] = reader.rest() {
        reader.skip()?;
        return Ok(None);
    }
    reader.word().map(Some)
}

fn read_id(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    match reader.head()? {
        Head::Unsigned(id) => Ok(Some(id)),
        Head::Signed(id) => Ok(Some(id as u64)),
        Head::Nil => Ok(None),
        _ => Err(Malformed),
    }
}

fn read_names(reader: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    let Head::Array(count @ ..=BLOCKS_MAX) = reader.head()? else { return Err(Malformed) };
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        names.push(read_name(reader)?.ok_or(Malformed)?);
    }
    Ok(names)
}

fn read_name(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if let Some(name) = reader.long() {
        return Ok(Some(name));
    }
    match reader.head()? {
        Head::Unsigned(name) => Ok(Some(name)),
        Head::Signed(name) => Ok(Some(name as u64)),
        Head::Bin(name) => Ok(Some(digest_name(name))),
        Head::Str(name) => Ok(Some(xxh3_64(name))),
        Head::Nil => Ok(None),
        _ => Err(Malformed),
    }
}

/// A digest is named by its last eight bytes, as vLLM turns digests into numbers. vLLM reports one block by number in
/// some events and by digest in others, because connectors forward digests unchanged.
pub(super) fn digest_name(digest: &[u8]) -> u64 {
    digest.last_chunk().map_or_else(|| xxh3_64(digest), |last| u64::from_be_bytes(*last))
}

fn read_tokens(reader: &mut Reader<'_>) -> Result<Vec<u32>, Malformed> {
    let Head::Array(count @ ..=TOKENS_MAX) = reader.head()? else { return Err(Malformed) };
    let mut tokens = Vec::with_capacity(count);
    for _ in 0..count {
        let token = match reader.small() {
            Some(token) => token,
            None => read_odd_token(reader)?,
        };
        tokens.push(token);
    }
    Ok(tokens)
}

/// SGLang's EAGLE mode caches pairs of neighbours; the first of each pair is the sequence.
fn read_odd_token(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    match reader.head()? {
        Head::Unsigned(token) => u32::try_from(token).map_err(|_| Malformed),
        Head::Signed(token) => u32::try_from(token).map_err(|_| Malformed),
        Head::Array(count @ 1..) => {
            let first = reader.small().ok_or(Malformed)?;
            for _ in 1..count {
                reader.skip()?;
            }
            Ok(first)
        }
        _ => Err(Malformed),
    }
}
