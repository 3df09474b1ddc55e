//! A batch of events in MessagePack, as vLLM writes it.

use std::sync::Arc;

use warmroute_engine::Memory;

use super::content::Content;
use crate::config::EventEncoding;
use crate::tokens;

/// The group of layers whose cache changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheGroup {
    Full,
    /// Sliding-window attention over this many tokens.
    Window(u32),
}

impl CacheGroup {
    fn index(self) -> u64 {
        match self {
            CacheGroup::Full => 0,
            CacheGroup::Window(_) => 1,
        }
    }
}

/// A change of the cache to report.
pub(crate) enum CacheChange {
    /// Blocks of a sequence are cached.
    Stored {
        content: Arc<Content>,
        first: usize,
        blocks: usize,
        group: CacheGroup,
    },
    Removed(u64, CacheGroup),
    /// A slower memory also has the block.
    Kept(u64, Memory),
    /// The slower memory no longer has it.
    Dropped(u64, Memory),
    Cleared,
}

impl CacheChange {
    /// Claims every block that the sequence may ever store.
    pub(crate) fn claim_all(&mut self) {
        if let CacheChange::Stored { content, first, blocks, .. } = self {
            *blocks = content.names.len() - *first;
        }
    }
}

/// `[when, [event, …], rank]`.
pub(crate) fn batch(changes: &[CacheChange], at_unix_s: f64, rank: u16, encoding: EventEncoding) -> Vec<u8> {
    let mut pack = Pack { out: Vec::with_capacity(256), encoding };
    pack.out.push(0x93);
    pack.out.push(0xcb);
    pack.out.extend_from_slice(&at_unix_s.to_be_bytes());
    pack.array(changes.len());
    changes.iter().for_each(|changes| pack.event(changes));
    pack.unsigned(u64::from(rank));
    pack.out
}

fn medium(memory: Memory) -> &'static str {
    match memory {
        Memory::Host => "CPU",
        Memory::Pool => "EXTERNAL",
    }
}

struct Pack {
    out: Vec<u8>,
    encoding: EventEncoding,
}

impl Pack {
    fn event(&mut self, changes: &CacheChange) {
        match changes {
            CacheChange::Stored { content, first, blocks, group } => {
                self.stored(content, *first, *blocks, *group);
            }
            CacheChange::Removed(name, group) => self.removed(*name, "GPU", *group),
            CacheChange::Kept(name, memory) => self.kept(*name, medium(*memory)),
            CacheChange::Dropped(name, memory) => self.removed(*name, medium(*memory), CacheGroup::Full),
            CacheChange::Cleared => self.open("AllBlocksCleared", 0),
        }
    }

    fn removed(&mut self, name: u64, medium: &str, group: CacheGroup) {
        self.open("BlockRemoved", 3);
        self.key("block_hashes");
        self.array(1);
        self.unsigned(name);
        self.key("medium");
        self.text(medium);
        self.key("group_idx");
        self.unsigned(group.index());
    }

    /// As vLLM's offloading connector writes it by default: by name only, with a block size of zero.
    fn kept(&mut self, name: u64, medium: &str) {
        self.open("BlockStored", 7);
        self.key("block_hashes");
        self.array(1);
        self.unsigned(name);
        self.key("parent_block_hash");
        self.nil();
        self.key("token_ids");
        self.array(0);
        self.key("block_size");
        self.unsigned(0);
        self.key("lora_id");
        self.nil();
        self.key("medium");
        self.text(medium);
        self.key("lora_name");
        self.nil();
    }

    fn stored(&mut self, content: &Content, first: usize, blocks: usize, group: CacheGroup) {
        let block_size = content.block_size as usize;
        // Fields with their default are omitted.
        self.open("BlockStored", if group == CacheGroup::Full { 10 } else { 11 });
        self.key("block_hashes");
        self.array(blocks);
        content.names[first..first + blocks].iter().for_each(|name| self.unsigned(name.0));
        self.key("parent_block_hash");
        match first.checked_sub(1) {
            Some(parent) => self.unsigned(content.names[parent].0),
            None => self.nil(),
        }
        self.key("token_ids");
        let tokens = &content.tokens[first * block_size..(first + blocks) * block_size];
        self.array(tokens.len());
        tokens.iter().for_each(|token| self.unsigned(u64::from(tokens::seen(*token))));
        self.key("block_size");
        self.unsigned(u64::from(content.block_size));
        self.key("lora_id");
        self.nil();
        self.key("medium");
        self.text("GPU");
        self.key("lora_name");
        self.maybe_text(content.lora.as_deref());
        self.key("extra_keys");
        self.extra_keys(content, first, blocks);
        self.key("group_idx");
        self.unsigned(group.index());
        self.key("kv_cache_spec_kind");
        match group {
            CacheGroup::Full => self.text("full_attention"),
            CacheGroup::Window(tokens) => {
                self.text("sliding_window");
                self.key("kv_cache_spec_sliding_window");
                self.unsigned(tokens.into());
            }
        }
    }

    /// One entry a block: the adapter for all, its images, the salt for the first of a prompt.
    fn extra_keys(&mut self, content: &Content, first: usize, blocks: usize) {
        self.array(blocks);
        for block in first..first + blocks {
            let salt = content.salt.as_deref().filter(|_| block == 0);
            let (lora, images) = (content.lora.as_deref(), content.images(block));
            let count = usize::from(lora.is_some()) + images.len() + usize::from(salt.is_some());
            if count == 0 {
                self.nil();
                continue;
            }
            self.array(count);
            lora.into_iter().for_each(|lora| self.text(lora));
            for (hash, offset) in images {
                self.array(2);
                self.text(&format!("{hash:016x}"));
                self.signed(offset);
            }
            salt.into_iter().for_each(|salt| self.text(salt));
        }
    }

    fn signed(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.unsigned(value),
            Err(_) => {
                self.out.push(0xd3);
                self.out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }

    fn open(&mut self, tag: &str, fields: u8) {
        match self.encoding {
            EventEncoding::Map => {
                self.out.push(0x80 | (fields + 1));
                self.text("type");
            }
            EventEncoding::Array => self.out.push(0x90 | (fields + 1)),
        }
        self.text(tag);
    }

    fn key(&mut self, name: &str) {
        if self.encoding == EventEncoding::Map {
            self.text(name);
        }
    }

    fn nil(&mut self) {
        self.out.push(0xc0);
    }

    fn maybe_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    fn text(&mut self, text: &str) {
        match text.len() {
            length @ 0..=31 => self.out.push(0xa0 | length as u8),
            length => {
                self.out.push(0xdb);
                self.out.extend_from_slice(&(length as u32).to_be_bytes());
            }
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    fn array(&mut self, length: usize) {
        match length {
            0..=15 => self.out.push(0x90 | length as u8),
            16..=0xffff => {
                self.out.push(0xdc);
                self.out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                self.out.push(0xdd);
                self.out.extend_from_slice(&(length as u32).to_be_bytes());
            }
        }
    }

    fn unsigned(&mut self, value: u64) {
        match value {
            0..=0x7f => self.out.push(value as u8),
            0x80..=0xff => self.out.extend_from_slice(&[0xcc, value as u8]),
            0x100..=0xffff => {
                self.out.push(0xcd);
                self.out.extend_from_slice(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.out.push(0xce);
                self.out.extend_from_slice(&(value as u32).to_be_bytes());
            }
            _ => {
                self.out.push(0xcf);
                self.out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}
