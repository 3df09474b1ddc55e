//! `dynamo-kv-router` 1.6: its compressed concurrent radix tree, with the event loop it is run with.
//!
//! The loop takes events from a channel on a thread of its own; its CPU time is read from that thread's clock. Events
//! are queued before the clock starts, so waiting does not count, taking them from the channel does.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};

use crate::clock;
use crate::rival::Rival;
use crate::stream::{Remove, Store};

pub struct Dynamo {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    /// Both are there until the drop.
    tasks: Option<flume::Sender<WorkerTask>>,
    lane: Option<JoinHandle<()>>,
    events: u64,
    prompt: Vec<LocalBlockHash>,
}

impl Dynamo {
    pub fn new() -> Dynamo {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (tasks, queue) = flume::unbounded();
        let backend = Arc::clone(&tree);
        let lane = thread::spawn(move || {
            backend.worker(queue, None).expect("the lane ends when its channel closes")
        });
        Dynamo { tree, tasks: Some(tasks), lane: Some(lane), events: 0, prompt: Vec::new() }
    }

    /// How many workers hold every block of a prompt.
    pub fn find_hashes(&self, hashes: &[LocalBlockHash]) -> usize {
        let scores = self.tree.find_matches(hashes, false).scores;
        scores.values().filter(|&&score| score as usize == hashes.len()).count()
    }

    fn event(&mut self, worker: usize, data: KvCacheEventData) -> RouterEvent {
        self.events += 1;
        RouterEvent::new(worker as u64, KvCacheEvent { event_id: self.events, data, dp_rank: 0 })
    }

    fn send(&mut self, worker: usize, data: KvCacheEventData) {
        let event = self.event(worker, data);
        self.queue(WorkerTask::Event(event));
    }

    fn queue(&self, task: WorkerTask) {
        let tasks = self.tasks.as_ref().expect("open until the drop");
        tasks.send(task).expect("the lane runs");
    }
}

impl Drop for Dynamo {
    /// Waits for the lane, so that its memory is not attributed to another index.
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(lane) = self.lane.take() {
            lane.join().expect("the lane does not fail");
        }
    }
}

impl Rival for Dynamo {
    fn name(&self) -> &'static str {
        "dynamo-kv-router"
    }

    fn store(&mut self, store: &Store) {
        let block = |block: &crate::stream::Block| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(block.name),
            tokens_hash: LocalBlockHash(block.digest),
            mm_extra_info: None,
        };
        let data = KvCacheStoreData {
            parent_hash: store.parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: store.blocks.iter().map(block).collect(),
        };
        self.send(store.worker, KvCacheEventData::Stored(data));
    }

    fn remove(&mut self, remove: &Remove) {
        let block_hashes = remove.names.iter().map(|&name| ExternalSequenceBlockHash(name)).collect();
        self.send(remove.worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }));
    }

    fn find(&mut self, prompt: &[u64]) -> (usize, u64) {
        self.prompt.clear();
        self.prompt.extend(prompt.iter().map(|&digest| LocalBlockHash(digest)));
        let scores = self.tree.find_matches(&self.prompt, false).scores;
        (scores.len(), scores.values().map(|&score| u64::from(score)).sum())
    }

    /// An event that is answered stands behind all others in the queue.
    fn drain(&mut self) -> u64 {
        let event = self.event(0, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: vec![] }));
        let (resp, answered) = tokio::sync::oneshot::channel();
        self.queue(WorkerTask::EventWithAck { event, resp });
        let _ = answered.blocking_recv();
        clock::other_thread_ns(self.lane.as_ref().expect("running until the drop"))
    }
}
