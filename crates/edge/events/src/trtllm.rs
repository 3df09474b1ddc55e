//! TensorRT-LLM's events: what `POST /kv_cache_events` drains, as JSON.
//!
//! Written from its source and documentation; no such engine was run. Events are numbered by `event_id`, and each poll
//! removes them, so there must be one consumer and there is no replay. A block that moves from the GPU to a lower level
//! counts as removed: its tokens are not repeated when it returns, and too little is the safe side.

use serde::Deserialize;
use serde_json::value::RawValue;
use warmroute_types::{
    Attention, CacheEvent, EventBatch, Group, Medium, RemovedBlocks, StoredBlocks, UnfollowedKind,
};
use xxhash_rust::xxh3::xxh3_64;

#[derive(Deserialize)]
struct Event {
    event_id: u64,
    window_size: Option<u32>,
    attention_dp_rank: Option<u16>,
    data: Data,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Data {
    Created {},
    Stored {
        parent_hash: Option<u64>,
        blocks: Vec<Block>,
    },
    Removed {
        block_hashes: Vec<u64>,
    },
    Updated {
        block_hash: u64,
        cache_level: Option<LevelChange>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Block {
    block_hash: u64,
    tokens: Vec<Token>,
    #[serde(default)]
    cache_level: u8,
}

#[derive(Deserialize)]
struct Token {
    token_id: u32,
    #[serde(default)]
    token_extra_id: u64,
}

#[derive(Deserialize)]
struct LevelChange {
    #[serde(rename = "old_value", alias = "old")]
    old: u8,
    #[serde(rename = "new_value", alias = "new")]
    new: u8,
}

/// One event with its number.
#[derive(Debug, PartialEq)]
pub struct PolledEvent {
    pub seq: u64,
    pub batch: EventBatch,
}

/// Reads a poll's response, in order. The widest window seen is the full attention. Events carry no time.
pub fn read(body: &[u8], window_max: &mut u32) -> Result<Vec<PolledEvent>, serde_json::Error> {
    let raw: Vec<&RawValue> = serde_json::from_slice(body)?;
    let mut events = Vec::with_capacity(raw.len());
    for raw in raw {
        let print = xxh3_64(raw.get().as_bytes());
        match serde_json::from_str::<Event>(raw.get()) {
            Ok(event) => events.push(event.numbered(window_max, print)),
            // Its number is unreadable too, so it shows as a gap.
            Err(error) => tracing::debug!(%error, "an event of TensorRT-LLM that is not understood"),
        }
    }
    Ok(events)
}

impl Event {
    fn numbered(self, window_max: &mut u32, print: u64) -> PolledEvent {
        let window = self.window_size.unwrap_or(0);
        *window_max = window.max(*window_max);
        let is_full = window == *window_max;
        let attention =
            if is_full { Attention::Full } else { Attention::Unfollowed(UnfollowedKind::TensorRtWindow) };
        // Windows are groups: the full one has number 0, all others have another.
        let group = Group { index: u16::from(!is_full), attention };
        let events = self.data.events(group);
        let batch = EventBatch { events, rank: self.attention_dp_rank, print, ..EventBatch::default() };
        PolledEvent { seq: self.event_id, batch }
    }
}

impl Data {
    fn events(self, group: Group) -> Vec<CacheEvent> {
        match self {
            Data::Created {} | Data::Unknown => Vec::new(),
            Data::Stored { parent_hash, blocks } => stored(parent_hash, blocks, group),
            Data::Removed { block_hashes: names } => {
                let gone = RemovedBlocks { names, medium: Medium::Gpu, group: group.index };
                vec![CacheEvent::Removed(gone)]
            }
            Data::Updated { block_hash, cache_level: Some(LevelChange { old: 0, new: level @ 1.. }) } => {
                let (names, medium) = (vec![block_hash], medium(level));
                let moved = StoredBlocks { names: names.clone(), medium, group, ..StoredBlocks::default() };
                let gone = RemovedBlocks { names, medium: Medium::Gpu, group: group.index };
                vec![CacheEvent::Stored(moved), CacheEvent::Removed(gone)]
            }
            // Blocks that return to the GPU stay known as restorable.
            Data::Updated { .. } => Vec::new(),
        }
    }
}

/// Each block is the parent of the next; consecutive blocks of one size and level become one event.
fn stored(mut parent: Option<u64>, blocks: Vec<Block>, group: Group) -> Vec<CacheEvent> {
    let mut runs: Vec<StoredBlocks> = Vec::new();
    for block in blocks.into_iter().filter(|block| !block.tokens.is_empty()) {
        let (block_tokens, medium) = (block.tokens.len() as u32, medium(block.cache_level));
        let fits = |run: &StoredBlocks| (run.block_tokens, run.medium) == (block_tokens, medium);
        if !runs.last().is_some_and(fits) {
            runs.push(StoredBlocks { parent, block_tokens, medium, group, ..StoredBlocks::default() });
        }
        if let Some(run) = runs.last_mut() {
            let is_text = block.tokens.iter().all(|token| token.token_extra_id == 0);
            if is_text && run.text_blocks as usize == run.names.len() {
                run.text_blocks += 1;
            }
            run.names.push(block.block_hash);
            run.tokens.extend(block.tokens.iter().map(|token| token.token_id));
        }
        parent = Some(block.block_hash);
    }
    runs.into_iter().map(CacheEvent::Stored).collect()
}

fn medium(cache_level: u8) -> Medium {
    match cache_level {
        0 => Medium::Gpu,
        1 => Medium::Host,
        _ => Medium::External,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"[
      {"event_id":0,"window_size":4096,"data":{"type":"created","num_blocks_per_cache_level":[10,0]}},
      {"event_id":1,"window_size":4096,"data":{"type":"stored","parent_hash":null,"blocks":[
        {"type":"stored_block","block_hash":11,"cache_level":0,"priority":35,
         "tokens":[{"type":"unique_token","token_id":1,"token_extra_id":0},{"token_id":2,"token_extra_id":0}]},
        {"block_hash":12,"cache_level":0,"tokens":[{"token_id":3,"token_extra_id":9},{"token_id":4}]},
        {"block_hash":13,"cache_level":0,"tokens":[{"token_id":5}]}]}},
      {"event_id":2,"window_size":1024,"data":{"type":"removed","block_hashes":[11]}},
      {"event_id":3,"window_size":4096,"data":{"type":"updated","block_hash":12,"cache_level":{"type":"event_diff","old_value":0,"new_value":1}}},
      {"event_id":4,"data":{"type":"stored","blocks":"broken"}},
      {"event_id":5,"window_size":4096,"attention_dp_rank":1,"data":{"type":"of_tomorrow"}}]"#;

    #[test]
    fn a_poll_becomes_numbered_events() {
        let mut window_max = 0;
        let events = read(BODY.as_bytes(), &mut window_max).unwrap();
        assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [0, 1, 2, 3, 5]);
        let run = |names: &[u64], parent, tokens: &[u32], block_tokens, text_blocks| {
            CacheEvent::Stored(StoredBlocks {
                names: names.to_vec(),
                parent,
                tokens: tokens.to_vec(),
                block_tokens,
                text_blocks,
                ..StoredBlocks::default()
            })
        };
        let stored = [run(&[11, 12], None, &[1, 2, 3, 4], 2, 1), run(&[13], Some(12), &[5], 1, 1)];
        assert_eq!(events[1].batch.events, stored);
        let removed = |name, group| {
            CacheEvent::Removed(RemovedBlocks { names: vec![name], medium: Medium::Gpu, group })
        };
        assert_eq!(events[2].batch.events, [removed(11, 1)], "of a window that makes no prefix");
        let host = StoredBlocks { names: vec![12], medium: Medium::Host, ..StoredBlocks::default() };
        assert_eq!(events[3].batch.events, [CacheEvent::Stored(host), removed(12, 0)], "moved");
        assert_eq!((events[4].batch.rank, window_max), (Some(1), 4096));
    }

    #[test]
    fn a_response_that_is_not_a_list_is_refused() {
        assert!(read(b"{}", &mut 0).is_err());
        assert_eq!(read(b"[]", &mut 0).unwrap(), []);
    }
}
