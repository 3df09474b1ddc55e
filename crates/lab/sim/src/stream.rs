//! What one engine publishes of its cache: batches, numbered from its start on, the last of which it remembers for whoever
//! missed some; and what of that is on its way to the routers.
//!
//! It is ZMQ's publisher as vLLM uses it. A new process counts from 0 again, and whoever is connected to the old one is
//! not heard of by the new one.

use std::collections::VecDeque;
use std::rc::Rc;

use warmroute_engine::{BlockName, Memory};
use warmroute_types::{CacheEvent, EventBatch, Medium, Micros, RemovedBlocks, StoredBlocks};

use crate::directory::{News, Stored};
use crate::random::mix;

/// One engine's stream.
#[derive(Debug)]
pub struct Stream {
    /// How often the engine was started again.
    pub process: u32,
    next_seq: u64,
    remembered: VecDeque<Rc<Batch>>,
    remembered_max: usize,
    /// What has left and not arrived. All of it takes the same time, so it arrives in order.
    pub under_way: VecDeque<Letter>,
}

/// What arrives from an engine.
#[derive(Clone, Debug)]
pub enum Letter {
    /// A connection to this process.
    Up(u32),
    /// What happened to its cache.
    Batch(Rc<Batch>),
    /// The end of the connection.
    Down,
}

/// What an engine tells at one time.
#[derive(Debug)]
pub struct Batch {
    /// Whose it is.
    pub process: u32,
    /// Its number.
    pub seq: u64,
    at: Micros,
    news: Vec<News>,
}

impl Stream {
    /// Of an engine that has just been started and remembers so many batches.
    pub fn new(remembered_max: usize) -> Stream {
        Stream {
            process: 0,
            next_seq: 0,
            remembered: VecDeque::new(),
            remembered_max,
            under_way: VecDeque::new(),
        }
    }

    /// Numbers what happened.
    pub fn publish(&mut self, at: Micros, news: Vec<News>) -> Rc<Batch> {
        let batch = Rc::new(Batch { process: self.process, seq: self.next_seq, at, news });
        self.next_seq += 1;
        if self.remembered_max > 0 {
            if self.remembered.len() == self.remembered_max {
                self.remembered.pop_front();
            }
            self.remembered.push_back(Rc::clone(&batch));
        }
        batch
    }

    /// All that is remembered from a number on.
    pub fn replay(&self, from_seq: u64) -> Vec<Rc<Batch>> {
        self.remembered.iter().filter(|batch| batch.seq >= from_seq).cloned().collect()
    }

    /// The engine is a new process.
    pub fn restart(&mut self) {
        self.process += 1;
        self.next_seq = 0;
        self.remembered.clear();
    }
}

impl Batch {
    /// As a feed is told.
    pub fn event_batch(&self, block_tokens: u32) -> EventBatch {
        EventBatch {
            at_unix_s: self.at.as_secs_f64(),
            events: self.news.iter().map(|one| event(one, block_tokens)).collect(),
            rank: None,
            unreadable: 0,
            print: mix(u64::from(self.process) << 40 ^ self.seq),
        }
    }
}

fn event(news: &News, block_tokens: u32) -> CacheEvent {
    match news {
        News::Stored(stored) => CacheEvent::Stored(blocks(stored, block_tokens)),
        News::Removed(name) => removed(*name, Medium::Gpu),
        // By name alone, as vLLM's offloading connector tells it.
        News::Kept(name, memory) => CacheEvent::Stored(StoredBlocks {
            names: vec![name.0],
            medium: medium(*memory),
            ..StoredBlocks::default()
        }),
        News::Dropped(name, memory) => removed(*name, medium(*memory)),
        News::Cleared => CacheEvent::Cleared,
    }
}

fn removed(name: BlockName, medium: Medium) -> CacheEvent {
    CacheEvent::Removed(RemovedBlocks { names: vec![name.0], medium, ..RemovedBlocks::default() })
}

fn medium(memory: Memory) -> Medium {
    match memory {
        Memory::Host => Medium::Host,
        Memory::Pool => Medium::External,
    }
}

fn blocks(stored: &Stored, block_tokens: u32) -> StoredBlocks {
    StoredBlocks {
        names: stored.names.iter().map(|name| name.0).collect(),
        parent: stored.parent.map(|name| name.0),
        text_blocks: stored.names.len() as u32,
        tokens: stored.content.token_ids(),
        block_tokens,
        ..StoredBlocks::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(batches: &[Rc<Batch>]) -> Vec<u64> {
        batches.iter().map(|batch| batch.seq).collect()
    }

    #[test]
    fn the_last_batches_are_remembered_until_the_engine_is_another() {
        let mut stream = Stream::new(3);
        let prints: Vec<u64> =
            (0..5).map(|at| stream.publish(Micros(at), vec![News::Cleared]).event_batch(16).print).collect();
        assert_eq!(seqs(&stream.replay(0)), [2, 3, 4]);
        assert_eq!(seqs(&stream.replay(4)), [4]);
        assert!(stream.replay(5).is_empty());
        stream.restart();
        assert!(stream.replay(0).is_empty());
        let anew = stream.publish(Micros(9), vec![News::Cleared]);
        assert_eq!((anew.seq, anew.process), (0, 1));
        assert!(!prints.contains(&anew.event_batch(16).print), "it is another batch");
        assert!(Stream::new(0).replay(0).is_empty());
    }
}
