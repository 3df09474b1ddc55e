//! The same events as JSON, for reporters: what `POST /events` takes.
//!
//! ```json
//! {"source": "a1b2c3", "seq": 7, "ts": 1794702240.9, "rank": 0, "reset": false, "events": [
//!   {"type": "BlockStored", "block_hashes": [10140833326293656795, "9f86d081…"], "parent_block_hash": null,
//!    "token_ids": [0, 2, 87], "block_size": 3, "lora_name": null, "medium": "GPU",
//!    "extra_keys": [["tenant-1"]], "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
//!   {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
//!   {"type": "AllBlocksCleared"}]}
//! ```
//!
//! Names and meanings are vLLM's. A hash is a number, or a string of hex digits for one of bytes. `source` names the
//! process, `seq` counts its posts from 0. A post with `reset` is a snapshot: everything known before is forgotten. With
//! content type `application/msgpack` the body is `[source, seq, reset, payload]`, where the payload is what the engine
//! would publish: `[ts, events, rank]`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use warmroute_types::{Attention, CacheEvent, EventBatch, Group, Medium, RemovedBlocks, StoredBlocks};
use xxhash_rust::xxh3::xxh3_64;

use crate::decode::{BadBatch, decode};
use crate::msgpack::{Head, Reader};

/// What a reporter posted.
#[derive(Debug, PartialEq)]
pub struct Post {
    pub source: String,
    pub seq: u64,
    pub kind: PostKind,
    pub batch: EventBatch,
}

/// Whether a post continues or begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostKind {
    Continues,
    Snapshot,
}

impl PostKind {
    fn of(is_reset: bool) -> PostKind {
        if is_reset { PostKind::Snapshot } else { PostKind::Continues }
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    source: Cow<'a, str>,
    seq: u64,
    #[serde(default)]
    reset: bool,
    #[serde(default)]
    ts: f64,
    rank: Option<u16>,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    block_hashes: Option<Vec<Hash<'a>>>,
    parent_block_hash: Option<Hash<'a>>,
    token_ids: Option<Vec<u32>>,
    block_size: Option<u32>,
    lora_id: Option<i64>,
    #[serde(borrow)]
    lora_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    medium: Option<Cow<'a, str>>,
    extra_keys: Option<Vec<Option<Vec<Key>>>>,
    group_idx: Option<u16>,
    #[serde(borrow)]
    kv_cache_spec_kind: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hash<'a> {
    Unsigned(u64),
    Signed(i64),
    #[serde(borrow)]
    Hex(Cow<'a, str>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Key {
    Text(String),
    Other(serde::de::IgnoredAny),
}

/// Reads a JSON body.
pub fn read_json(body: &[u8]) -> Result<Post, String> {
    let wire: Wire<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let at_unix_s = if wire.ts.is_finite() { wire.ts } else { 0.0 };
    let mut batch = EventBatch { at_unix_s, rank: wire.rank, print: xxh3_64(body), ..EventBatch::default() };
    for raw in wire.events {
        match serde_json::from_str::<Event<'_>>(raw.get()).ok().map(Event::read) {
            Some(Ok(Some(event))) => batch.events.push(event),
            Some(Ok(None)) => {}
            Some(Err(BadEvent)) | None => batch.unreadable += 1,
        }
    }
    let kind = PostKind::of(wire.reset);
    Ok(Post { source: wire.source.into_owned(), seq: wire.seq, kind, batch })
}

/// Reads a MessagePack body.
pub fn read_msgpack(body: &[u8]) -> Result<Post, String> {
    let bad = |_| BadBatch.to_string();
    let expected = || "expected [source, seq, reset, payload]".to_owned();
    let mut reader = Reader::new(body);
    let Ok(Head::Array(4..)) = reader.head() else { return Err(expected()) };
    let (Ok(Head::Str(source)), Ok(Head::Unsigned(seq))) = (reader.head(), reader.head()) else {
        return Err(expected());
    };
    // The two booleans are told apart by their byte.
    let is_reset = reader.rest().first() == Some(&0xc3);
    let (Ok(Head::Bool), Ok(source)) = (reader.head(), std::str::from_utf8(source)) else {
        return Err(expected());
    };
    let batch = decode(reader.rest()).map_err(bad)?;
    Ok(Post { source: source.to_owned(), seq, kind: PostKind::of(is_reset), batch })
}

struct BadEvent;

impl Event<'_> {
    fn read(self) -> Result<Option<CacheEvent>, BadEvent> {
        match self.kind.as_ref() {
            "BlockStored" => self.stored().map(|stored| Some(CacheEvent::Stored(stored))),
            "BlockRemoved" => {
                let (medium, group) = (medium(self.medium.as_deref()), self.group_idx.unwrap_or(0));
                let names = names(self.block_hashes)?;
                Ok(Some(CacheEvent::Removed(RemovedBlocks { names, medium, group })))
            }
            "AllBlocksCleared" => Ok(Some(CacheEvent::Cleared)),
            _ => Ok(None),
        }
    }

    fn stored(self) -> Result<StoredBlocks, BadEvent> {
        let names = names(self.block_hashes)?;
        let tokens = self.token_ids.ok_or(BadEvent)?;
        let block_tokens = self.block_size.ok_or(BadEvent)?;
        let is_whole =
            block_tokens > 0 && names.len().checked_mul(block_tokens as usize) == Some(tokens.len());
        let is_full = self.kv_cache_spec_kind.is_none_or(|kind| kind == "full_attention");
        let attention = if is_whole && is_full { Attention::Full } else { Attention::Other };
        let parent = self.parent_block_hash.map(Hash::name).transpose()?;
        let lora = self.lora_name.map(|name| name.as_ref().into());
        let keys = self.extra_keys.unwrap_or_default();
        let (salt, text_blocks) = content(&keys, parent.is_none(), lora.as_deref());
        Ok(StoredBlocks {
            text_blocks: text_blocks.map_or(names.len() as u32, |blocks| blocks.min(names.len() as u32)),
            names,
            parent,
            tokens,
            block_tokens,
            lora: lora.or_else(|| self.lora_id.map(|id| format!("#{id}").into())),
            salt,
            medium: medium(self.medium.as_deref()),
            group: Group { index: self.group_idx.unwrap_or(0), attention },
        })
    }
}

/// The salt, and the first block that is not only text.
fn content(keys: &[Option<Vec<Key>>], is_first: bool, lora: Option<&str>) -> (Option<Box<str>>, Option<u32>) {
    let (mut salt, mut ends_at) = (None, None);
    for (block, keys) in keys.iter().enumerate() {
        for key in keys.iter().flatten() {
            match key {
                Key::Text(text) if lora == Some(text) => {}
                Key::Text(text) if is_first && block == 0 => salt = Some(text.as_str().into()),
                Key::Text(_) | Key::Other(_) => {
                    ends_at.get_or_insert(block as u32);
                }
            }
        }
    }
    (salt, ends_at)
}

fn names(hashes: Option<Vec<Hash<'_>>>) -> Result<Vec<u64>, BadEvent> {
    hashes.ok_or(BadEvent)?.into_iter().map(Hash::name).collect()
}

impl Hash<'_> {
    fn name(self) -> Result<u64, BadEvent> {
        match self {
            Hash::Unsigned(name) => Ok(name),
            Hash::Signed(name) => Ok(name as u64),
            Hash::Hex(text) => hex(&text).map(|bytes| xxh3_64(&bytes)).ok_or(BadEvent),
        }
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn medium(name: Option<&str>) -> Medium {
    match name.map(str::to_ascii_uppercase).as_deref() {
        None | Some("GPU") => Medium::Gpu,
        Some("DISK" | "STORAGE") => Medium::Disk,
        Some(name) if name.starts_with("CPU") => Medium::Host,
        Some(_) => Medium::External,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(events: &str) -> Post {
        read_json(format!(r#"{{"source":"s","seq":3,"ts":1.5,"events":[{events}]}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn a_post_is_read_with_all_its_events() {
        let post = post(
            r#"{"type":"BlockStored","block_hashes":[18446744073709551615,-1],"parent_block_hash":null,
                "token_ids":[1,2,3,4],"block_size":2,"lora_name":"poet","medium":"CPU",
                "extra_keys":[["poet","salty"],[["image",3]]],"new_field":1},
               {"type":"BlockRemoved","block_hashes":[7]},{"type":"AllBlocksCleared"},{"type":"NewThing"}"#,
        );
        let stored = StoredBlocks {
            names: vec![u64::MAX, u64::MAX],
            tokens: vec![1, 2, 3, 4],
            block_tokens: 2,
            text_blocks: 1,
            lora: Some("poet".into()),
            salt: Some("salty".into()),
            medium: Medium::Host,
            ..StoredBlocks::default()
        };
        let removed = RemovedBlocks { names: vec![7], ..RemovedBlocks::default() };
        let events = [CacheEvent::Stored(stored), CacheEvent::Removed(removed), CacheEvent::Cleared];
        assert_eq!(post.batch.events, events);
        assert_eq!((post.seq, post.kind, post.batch.unreadable), (3, PostKind::Continues, 0));
    }

    #[test]
    fn one_bad_event_costs_only_itself() {
        let post = post(
            r#"{"type":"BlockStored","block_hashes":[1]},{"type":"BlockRemoved","block_hashes":["zz"]},
               {"type":"BlockRemoved","block_hashes":"no list"},{"no":"type"},{"type":"AllBlocksCleared"}"#,
        );
        assert_eq!((post.batch.events.as_slice(), post.batch.unreadable), (&[CacheEvent::Cleared][..], 4));
    }

    #[test]
    fn a_hash_of_bytes_has_the_name_it_has_on_the_wire() {
        let post = post(r#"{"type":"BlockRemoved","block_hashes":["0101"]}"#);
        let removed = RemovedBlocks { names: vec![xxh3_64(&[1, 1])], ..RemovedBlocks::default() };
        assert_eq!(post.batch.events, [CacheEvent::Removed(removed)]);
    }

    #[test]
    fn msgpack_says_the_same() {
        let body = [&b"\x94\xa1s\x03\xc3\x92\x01\x91\x91\xb0AllBlocksCleared"[..]].concat();
        let post = read_msgpack(&body).unwrap();
        assert_eq!((post.source.as_str(), post.seq, post.kind), ("s", 3, PostKind::Snapshot));
        assert_eq!(post.batch.events, [CacheEvent::Cleared]);
        assert!(read_msgpack(b"\x92\x01\x02").is_err());
    }
}
