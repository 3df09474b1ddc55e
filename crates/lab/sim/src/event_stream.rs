//! Event stream of one engine: numbered batches, of which the engine keeps the last for replays, and the
//! messages in transit to the routers.
//!
//! Models vLLM's ZMQ publisher. A restarted engine counts from 0 again, and its connections start anew.

use std::collections::VecDeque;
use std::rc::Rc;

use warmroute_engine::{BlockName, Memory};
use warmroute_types::{CacheEvent, EventBatch, Medium, Micros, RemovedBlocks, StoredBlocks};

use crate::directory::{CacheChange, Stored};
use crate::random::mix;

/// Event stream of one engine.
#[derive(Debug)]
pub struct EventStream {
    /// Number of restarts.
    pub process: u32,
    next_seq: u64,
    kept: VecDeque<Rc<PublishedBatch>>,
    kept_max: usize,
    /// Messages in transit. All have the same delay, so they arrive in order.
    pub in_transit: VecDeque<StreamMessage>,
}

/// Message from an engine to its subscribers.
#[derive(Clone, Debug)]
pub enum StreamMessage {
    /// Connection to the process with this number.
    Up(u32),
    /// Batch of cache changes.
    PublishedBatch(Rc<PublishedBatch>),
    /// Connection lost.
    Down,
}

/// Batch of cache changes with its sequence number.
#[derive(Debug)]
pub struct PublishedBatch {
    /// Process that published it.
    pub process: u32,
    /// Sequence number within the process.
    pub seq: u64,
    at: Micros,
    changes: Vec<CacheChange>,
}

impl EventStream {
    /// Stream of a fresh engine that keeps at most this many batches.
    pub fn new(kept_max: usize) -> EventStream {
        EventStream { process: 0, next_seq: 0, kept: VecDeque::new(), kept_max, in_transit: VecDeque::new() }
    }

    /// Publishes changes as the next batch.
    pub fn publish(&mut self, at: Micros, changes: Vec<CacheChange>) -> Rc<PublishedBatch> {
        let batch = Rc::new(PublishedBatch { process: self.process, seq: self.next_seq, at, changes });
        self.next_seq += 1;
        if self.kept_max > 0 {
            if self.kept.len() == self.kept_max {
                self.kept.pop_front();
            }
            self.kept.push_back(Rc::clone(&batch));
        }
        batch
    }

    /// Kept batches from a sequence number on.
    pub fn replay(&self, from_seq: u64) -> Vec<Rc<PublishedBatch>> {
        self.kept.iter().filter(|batch| batch.seq >= from_seq).cloned().collect()
    }

    /// Starts a new process: numbering restarts and kept batches are lost.
    pub fn restart(&mut self) {
        self.process += 1;
        self.next_seq = 0;
        self.kept.clear();
    }
}

impl PublishedBatch {
    /// The batch as production decodes it.
    pub fn event_batch(&self, block_tokens: u32) -> EventBatch {
        EventBatch {
            at_unix_s: self.at.as_secs_f64(),
            events: self.changes.iter().map(|one| event(one, block_tokens)).collect(),
            rank: None,
            unreadable: 0,
            print: mix(u64::from(self.process) << 40 ^ self.seq),
        }
    }
}

fn event(changes: &CacheChange, block_tokens: u32) -> CacheEvent {
    match changes {
        CacheChange::Stored(stored) => CacheEvent::Stored(blocks(stored, block_tokens)),
        CacheChange::Removed(name) => removed(*name, Medium::Gpu),
        // Named without content, as vLLM's offloading connector reports it.
        CacheChange::Kept(name, memory) => CacheEvent::Stored(StoredBlocks {
            names: vec![name.0],
            medium: medium(*memory),
            ..StoredBlocks::default()
        }),
        CacheChange::Dropped(name, memory) => removed(*name, medium(*memory)),
        CacheChange::Cleared => CacheEvent::Cleared,
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

    fn seqs(batches: &[Rc<PublishedBatch>]) -> Vec<u64> {
        batches.iter().map(|batch| batch.seq).collect()
    }

    #[test]
    fn the_last_batches_are_kept_until_the_engine_restarts() {
        let mut stream = EventStream::new(3);
        let prints: Vec<u64> = (0..5)
            .map(|at| stream.publish(Micros(at), vec![CacheChange::Cleared]).event_batch(16).print)
            .collect();
        assert_eq!(seqs(&stream.replay(0)), [2, 3, 4]);
        assert_eq!(seqs(&stream.replay(4)), [4]);
        assert!(stream.replay(5).is_empty());
        stream.restart();
        assert!(stream.replay(0).is_empty());
        let anew = stream.publish(Micros(9), vec![CacheChange::Cleared]);
        assert_eq!((anew.seq, anew.process), (0, 1));
        assert!(!prints.contains(&anew.event_batch(16).print), "it is another batch");
        assert!(EventStream::new(0).replay(0).is_empty());
    }
}
