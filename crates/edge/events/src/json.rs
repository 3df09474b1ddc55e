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
use warmroute_types::EventBatch;
use xxhash_rust::xxh3::xxh3_64;

use crate::decode::{BadBatch, decode, decode_event};
use crate::msgpack::{Head, Reader};
use crate::transcode::transcode;

/// A reporter's post.
#[derive(Debug, PartialEq)]
pub struct Post {
    pub source: String,
    pub seq: u64,
    pub kind: PostKind,
    pub batch: EventBatch,
}

/// Whether a post continues the stream or begins a new one.
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

/// Decodes a JSON body.
pub fn read_json(body: &[u8]) -> Result<Post, String> {
    let wire: Wire<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let at_unix_s = if wire.ts.is_finite() { wire.ts } else { 0.0 };
    let mut batch = EventBatch { at_unix_s, rank: wire.rank, print: xxh3_64(body), ..EventBatch::default() };
    let mut event = Vec::new();
    for raw in wire.events {
        event.clear();
        match transcode(raw.get(), &mut event) {
            Ok(()) => decode_event(&event, &mut batch),
            Err(_) => batch.unreadable += 1,
        }
    }
    let kind = PostKind::of(wire.reset);
    Ok(Post { source: wire.source.into_owned(), seq: wire.seq, kind, batch })
}

/// Decodes a MessagePack body.
pub fn read_msgpack(body: &[u8]) -> Result<Post, String> {
    let bad = |_| BadBatch.to_string();
    let expected = || "expected [source, seq, reset, payload]".to_owned();
    let mut reader = Reader::new(body);
    let Ok(Head::Array(4..)) = reader.head() else { return Err(expected()) };
    let (Ok(Head::Str(source)), Ok(Head::Unsigned(seq))) = (reader.head(), reader.head()) else {
        return Err(expected());
    };
    // The byte distinguishes the two booleans.
    let is_reset = reader.rest().first() == Some(&0xc3);
    let (Ok(Head::Bool), Ok(source)) = (reader.head(), std::str::from_utf8(source)) else {
        return Err(expected());
    };
    let batch = decode(reader.rest()).map_err(bad)?;
    Ok(Post { source: source.to_owned(), seq, kind: PostKind::of(is_reset), batch })
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::{CacheEvent, Medium, RemovedBlocks, StoredBlocks};

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
    fn one_bad_event_does_not_affect_the_others() {
        let post = post(
            r#"{"type":"BlockStored","block_hashes":[1]},{"type":"BlockRemoved","block_hashes":["zz"]},
               {"type":"BlockRemoved","block_hashes":"no list"},{"no":"type"},{"type":"AllBlocksCleared"}"#,
        );
        assert_eq!((post.batch.events.as_slice(), post.batch.unreadable), (&[CacheEvent::Cleared][..], 4));
    }

    #[test]
    fn media_and_adapters_match_the_wire_format() {
        let post = post(
            r#"{"type":"BlockRemoved","block_hashes":[1],"medium":"GPU","locality":"REMOTE"},
               {"type":"BlockStored","block_hashes":[2],"parent_block_hash":"0a0b","token_ids":[1,2],"block_size":2,
                "lora_id":3,"extra_keys":[[3]]}"#,
        );
        let [CacheEvent::Removed(removed), CacheEvent::Stored(stored)] = &post.batch.events[..] else {
            panic!("{post:?}")
        };
        assert_eq!(removed.medium, Medium::External);
        assert_eq!((stored.lora.as_deref(), stored.text_blocks), (Some("#3"), 1));
        assert_eq!(stored.parent, Some(xxh3_64(&[10, 11])));
    }

    #[test]
    fn blocks_without_tokens_are_unreadable() {
        let post = post(
            r#"{"type":"BlockStored","block_hashes":[1,2,3],"token_ids":[1,2],"block_size":2},
               {"type":"BlockStored","block_hashes":[1],"token_ids":[1,2],"block_size":0}"#,
        );
        assert_eq!((post.batch.events.len(), post.batch.unreadable), (0, 2));
    }

    #[test]
    fn a_byte_hash_has_the_same_name_as_on_the_wire() {
        let post = post(r#"{"type":"BlockRemoved","block_hashes":["0101"]}"#);
        let removed = RemovedBlocks { names: vec![xxh3_64(&[1, 1])], ..RemovedBlocks::default() };
        assert_eq!(post.batch.events, [CacheEvent::Removed(removed)]);
    }

    #[test]
    fn msgpack_posts_equal_json_posts() {
        let body = [&b"\x94\xa1s\x03\xc3\x92\x01\x91\x91\xb0AllBlocksCleared"[..]].concat();
        let post = read_msgpack(&body).unwrap();
        assert_eq!((post.source.as_str(), post.seq, post.kind), ("s", 3, PostKind::Snapshot));
        assert_eq!(post.batch.events, [CacheEvent::Cleared]);
        assert!(read_msgpack(b"\x92\x01\x02").is_err());
    }
}
